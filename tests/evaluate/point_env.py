"""A point near which a policy must stay, as a simulator that a host has added.

The variable POINT_FAULT plants a fault in the first step of an episode: KIND:FILE, once, by whoever
makes the file; KIND alone, in all episodes. Kinds: hang, kill, raise, and orphan, which kills the
evaluation when others have played; in reset: unseeded; when it is made: display.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.datasets import CAMERA
from tests.point_simulator import PointSimulator

_OTHERS_SECONDS = 3.0
"""In which another worker plays an episode."""
ADDED = """

def get_env_class(env_meta=None, env_type=None, env=None):
    from tests.evaluate.point_env import PointEnv

    return PointEnv
"""
"""What a host's env_utils.py gets."""


def add_to(package: Path) -> None:
    """Have the host in the folder `package` simulate the point."""
    with open(package / "utils" / "env_utils.py", "a") as file:
        file.write(ADDED)


class PointEnv(PointSimulator):
    """Fails on request."""

    horizon, near = 6, 0.8

    def __init__(self, env_name: str, use_image_obs: bool = False, **_: Any) -> None:
        super().__init__(env_name)
        self.sees = use_image_obs
        kind, _, file = os.environ.get("POINT_FAULT", "").partition(":")
        self.fault, self.file = kind, file
        self.resets = 0
        if kind == "display":
            raise ImportError("Cannot initialize a EGL device display.")  # as mujoco says it
        self.reset()

    def reset(self) -> dict[str, np.ndarray]:
        self.resets += 1
        self.place = 0.6 * np.random.standard_normal(3)
        if self.fault == "unseeded":
            self.place = self.place + self.resets
        self.steps = 0
        return self.get_observation()

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, dict]:
        self.place = self.place + 0.3 * np.asarray(action)[:3]
        self.steps += 1
        if self.steps == 1 and self.fault:
            self._plant()
        return self.get_observation(), self.get_reward(), self.is_done(), {}

    def _plant(self) -> None:
        if self.file:
            try:
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        if self.fault == "hang":
            threading.Event().wait()
        elif self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "orphan":
            time.sleep(_OTHERS_SECONDS)
            os.kill(os.getppid(), signal.SIGKILL)
            threading.Event().wait()
        elif self.fault == "raise":
            raise ValueError("planted in an episode")

    def get_observation(self, obs: Any = None) -> dict[str, np.ndarray]:
        state = super().get_observation(obs)
        return {**state, CAMERA: np.zeros((32, 32, 3), np.uint8)} if self.sees else state
