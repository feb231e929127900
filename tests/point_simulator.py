"""What the simulators of tests have in common: a point, with the host's interface.

Observations and actions are as in tests/datasets.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.demo.minimal_env import MinimalEnv


class PointSimulator(MinimalEnv):
    """An episode has `horizon` steps; it succeeds within `near` of the origin."""

    horizon, near = 5, 1.0

    def __init__(self, env_name: str) -> None:
        super().__init__(env_name)
        self.steps, self.place = 0, np.zeros(3)

    def get_observation(self, obs: Any = None) -> dict[str, np.ndarray]:
        return {"position": self.place.astype(np.float32), "gripper": np.zeros(1, np.float32)}

    def get_reward(self) -> float:
        return -float(np.linalg.norm(self.place))

    def is_done(self) -> bool:
        return self.steps >= self.horizon

    def is_success(self) -> dict[str, bool]:
        return {"task": bool(np.linalg.norm(self.place) < self.near)}

    def render(self, mode: str = "human", height: int = 8, width: int = 8, **_: Any) -> np.ndarray:
        return np.full((height, width, 3), self.steps, np.uint8)

    def serialize(self) -> dict[str, Any]:
        return {"env_name": self.env_name, "type": self.type, "env_kwargs": {}}

    @property
    def action_dimension(self) -> int:
        return 4
