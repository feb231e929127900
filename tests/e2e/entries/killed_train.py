"""Runs the host's train script and kills this rank, as SIGKILL does, at a moment that is planned.

    torchrun ... -m tests.e2e.entries.killed_train PLAN FOLDER --config cfg.json [--resume]

PLAN: "none", or moments joined by "+", each `RANK|all@STEP` (just before that training step of the
process, counted from 1), `RANK|all@save:N` (inside the N-th save of the state), or
`RANK|all@SIGUSR1:STEP` (sends itself the signal, twice) or `RANK@SIGTERM:STEP` (sends it to
torchrun). Each moment happens once: FOLDER remembers it. Steps wait until the states before are
written.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import robomimic.scripts.train as host_train

from robomimic_ddp.checkpoint import torch_save
from robomimic_ddp.training import run
from tests.e2e.entries.host_entry import train
from tests.e2e.entries.watched_train import around

ANSWER_SECONDS = 3.0
"""Time for torchrun to pass a signal on, before this rank takes its next step."""
RANK = int(os.environ.get("RANK", "0"))


class Killer:
    """Kills this rank at each of its moments, once over all attempts of the job."""

    def __init__(self, plan: str, folder: Path) -> None:
        self.folder = folder
        self.moments = [] if plan == "none" else [part.split("@") for part in plan.split("+")]
        self.steps = self.saves = 0

    def install(self) -> None:
        """Puts itself around the host's functions and our save."""
        around(host_train, "algo_factory", self.construct)
        around(torch_save, "save", self.save)

    def construct(self, factory: Any, *args: Any, **kwargs: Any) -> Any:
        model = factory(*args, **kwargs)
        around(model, "train_on_batch", self.step)
        return model

    def step(self, train_on_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("validate"):
            run.current().output.writer.flush()
            self.steps += 1
            self.at(str(self.steps))
            self.at(f"SIGUSR1:{self.steps}", signal.SIGUSR1, times=2)
            self.at(f"SIGTERM:{self.steps}", signal.SIGTERM, process=os.getppid())
        return train_on_batch(*args, **kwargs)

    def save(self, save: Any, obj: Any, path: Any, **options: Any) -> None:
        if Path(path).name != "ddp_state.pth":
            return save(obj, path, **options)
        self.saves += 1
        if self.due(f"save:{self.saves}"):
            import torch

            write = torch.save

            def half(content: Any, target: Any) -> None:
                write(content, target)
                os.truncate(target, os.path.getsize(target) // 2)
                self.at(f"save:{self.saves}")

            torch.save = half
            try:
                return save(obj, path, **options)
            finally:
                torch.save = write
        return save(obj, path, **options)

    def at(
        self,
        moment: str,
        number: int = signal.SIGKILL,
        times: int = 1,
        process: int | None = None,
    ) -> None:
        for once in self.due(moment):
            once.touch()
            for _ in range(times):
                os.kill(process or os.getpid(), number)
            if process is not None:
                time.sleep(ANSWER_SECONDS)

    def due(self, moment: str) -> list[Path]:
        """Files to remember what is planned for this rank at this moment and has not happened."""
        found = [
            self.folder / f"{who}-{when.replace(':', '-')}-rank{RANK}"
            for who, when in self.moments
            if when == moment and who in ("all", str(RANK))
        ]
        return [path for path in found if not path.exists()]


def main(killer: type[Killer] = Killer) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args(sys.argv[1:])
    given.folder.mkdir(exist_ok=True)
    killer(given.plan, given.folder).install()
    train(given.config, given.resume)


if __name__ == "__main__":
    main()
