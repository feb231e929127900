"""Runs the host's train script and waits, on one rank, at moments that are planned.

    torchrun ... -m tests.nodes.held_train PLAN FOLDER --config cfg.json [--resume]

PLAN: "none", or moments joined by "+", each `RANK@STEP` (just before that training step of the
process, counted from 1), `RANK@save:N` (inside the N-th save of the state), `RANK@validation:N` or
`RANK@join:1` (before the ranks meet). The rank makes a file in FOLDER, and waits for another one
(`reached`, `release`). Each moment happens once: FOLDER remembers it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from robomimic_ddp.distributed import group
from tests.e2e.entries import killed_train
from tests.e2e.entries.watched_train import around


def reached(folder: Path, moment: str) -> Path:
    """The file that says that a rank waits at `moment`, as in a plan."""
    rank, _, when = moment.partition("@")
    return folder / f"{rank}-{when.replace(':', '-')}-rank{rank}"


def release(folder: Path, moment: str) -> None:
    """Lets the rank that waits at `moment` continue."""
    reached(folder, moment).with_suffix(".go").touch()


class Holder(killed_train.Killer):
    """Waits at each of its moments."""

    validations = 0

    def install(self) -> None:
        super().install()
        around(group, "_meet", self.meet)

    def meet(self, meet: Any, *args: Any, **kwargs: Any) -> Any:
        self.at("join:1")
        return meet(*args, **kwargs)

    def step(self, train_on_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("validate"):
            self.validations += 1
            self.at(f"validation:{self.validations}")
        return super().step(train_on_batch, *args, **kwargs)

    def at(self, moment: str, *_: Any, **__: Any) -> None:
        for once in self.due(moment):
            once.touch()
            while not once.with_suffix(".go").exists():
                time.sleep(0.05)


if __name__ == "__main__":
    killed_train.main(Holder)
