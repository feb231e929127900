"""Runs the host's train script; in a job of Slurm that does not resume, slowly from its fifth step
on.

    ... -m tests.slurm.paced_train --config cfg.json

The file `reached` in the config's folder says that a test may interrupt it.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import robomimic.scripts.train as host_train

from tests.e2e.entries.host_entry import train
from tests.e2e.entries.watched_train import around

FROM_STEP, STEP_SECONDS = 5, 1.0


class Pace:
    """Makes training steps last longer."""

    def __init__(self, reached: Path) -> None:
        self.reached, self.steps = reached, 0

    def construct(self, factory: Any, *args: Any, **kwargs: Any) -> Any:
        model = factory(*args, **kwargs)
        around(model, "train_on_batch", self.step)
        return model

    def step(self, train_on_batch: Any, *args: Any, **kwargs: Any) -> Any:
        self.steps += not kwargs.get("validate")
        if self.steps >= FROM_STEP:
            self.reached.touch()
            time.sleep(STEP_SECONDS)
        return train_on_batch(*args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    given = parser.parse_args()
    started_again = {"SLURM_RESTART_COUNT", "ROBOMIMIC_DDP_RESUME"} & {*os.environ}
    if "SLURM_JOB_ID" in os.environ and not started_again:
        around(host_train, "algo_factory", Pace(given.config.parent / "reached").construct)
    train(str(given.config))


if __name__ == "__main__":
    main()
