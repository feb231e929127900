"""An environment with the host's interface, and a training run that rolls out in it.

    torchrun ... -m tests.e2e.entries.walk_env REPORTS [--fails RANK] --config cfg.json

A point must come near the place that the reset draws from numpy's global stream. Writes
REPORTS/rank<k>.json: where each episode of this rank began, the statistics it was given, and the
GPU that simulators render on (null: they were given none). RANK raises in the second step of its
second episode.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import robomimic.scripts.train as host_train
import robomimic.utils.env_utils as EnvUtils

from tests.e2e.entries.host_entry import train
from tests.point_simulator import PointSimulator

RANK = int(os.environ.get("RANK", "0"))
BEGINNINGS: list[float] = []
"""The first place of each episode that this rank has run."""
RENDERS_ON: list[str | None] = []
"""For each environment the GPU that a simulator would have been given when it was made."""


class PlantedFault(Exception):
    """Raised on purpose."""


FAILS: list[int] = []


class WalkEnv(PointSimulator):
    """Notes where episodes begin."""

    def __init__(self, env_name: str, **_: Any) -> None:
        super().__init__(env_name)
        RENDERS_ON.append(os.environ.get("MUJOCO_EGL_DEVICE_ID"))
        self.reset()
        BEGINNINGS.clear()  # episodes only, not this one

    def reset(self) -> dict[str, np.ndarray]:
        self.place = np.random.standard_normal(3)
        self.steps = 0
        BEGINNINGS.append(float(self.place[0]))
        return self.get_observation()

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, dict]:
        self.place = self.place + 0.3 * np.asarray(action)[:3]
        self.steps += 1
        if RANK in FAILS and len(BEGINNINGS) == 2 and self.steps == 2:
            raise PlantedFault(f"planted in a rollout on rank {RANK} at time {time.time()}")
        return self.get_observation(), self.get_reward(), self.is_done(), {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("reports", type=Path)
    parser.add_argument("--fails", type=int)
    parser.add_argument("--config")
    given = parser.parse_args(sys.argv[1:])
    FAILS.append(given.fails)
    EnvUtils.get_env_class = lambda **_: WalkEnv
    statistics = []
    rollouts = host_train.TrainUtils.rollout_with_stats

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = rollouts(*args, **kwargs)
        timeless = {"time": 0, "Time_Episode": 0}
        statistics.append({name: {**log, **timeless} for name, log in result[0].items()})
        return result

    host_train.TrainUtils.rollout_with_stats = watched
    train(given.config)
    given.reports.mkdir(exist_ok=True)
    report = {"beginnings": BEGINNINGS, "statistics": statistics, "renders_on": RENDERS_ON[-1]}
    (given.reports / f"rank{RANK}.json").write_text(json.dumps(report, default=float))


if __name__ == "__main__":
    main()
