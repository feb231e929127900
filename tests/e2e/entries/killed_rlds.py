"""Runs the dot-list entry on RLDS data, kills this rank as planned, and notes what it trains on.

    torchrun ... -m tests.e2e.entries.killed_rlds PLAN FOLDER load_from=cfg.json key=value ...

PLAN: see killed_train. FOLDER/windows<rank>.jsonl gets a line per training batch: the attempt of
torchrun and the windows' numbers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import robomimic.scripts.train_rlds as entry

from tests.e2e.entries.killed_train import RANK, Killer
from tests.e2e.entries.watched_train import around


class NotingKiller(Killer):
    """Also notes the windows of each batch before it is trained on."""

    def construct(self, factory: Callable, *args: Any, **kwargs: Any) -> Any:
        model = super().construct(factory, *args, **kwargs)
        around(
            model,
            "process_batch_for_training",
            lambda process, batch: self.note(process, batch, model),
        )
        return model

    def note(self, process: Callable, batch: Any, model: Any) -> Any:
        if model.nets.training:
            line = [os.environ.get("TORCHELASTIC_RESTART_COUNT"), batch["index"].tolist()]
            with open(self.folder / f"windows{RANK}.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        return process(batch)


def main() -> None:
    plan, folder = sys.argv.pop(1), Path(sys.argv.pop(1))
    folder.mkdir(exist_ok=True)
    NotingKiller(plan, folder).install()
    entry.main()


if __name__ == "__main__":
    main()
