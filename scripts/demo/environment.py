"""The demo task as an environment of the host, which `robomimic-ddp evaluate` plays.

The demo's copy of robomimic makes it: see `Job.add_simulator`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import robomimic.utils.obs_utils as ObsUtils

from robomimic_ddp.data.rlds.pipeline.images import resize_frames
from robomimic_ddp.data.rlds.schema.rotations import convert
from robomimic_ddp.data.rlds.schema.spec import load_schema
from scripts.demo.minimal_env import MinimalEnv
from scripts.demo.simulator import ReachSimulator

FIRST_SEED = 2**31
"""Demonstrations draw their simulator seeds below this (`record_episode`)."""


def see(simulator: ReachSimulator, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the present moment under the host's `keys`; pictures are uint8 [H, W, 3]."""
    moment = {**simulator.pictures(), **simulator.state()}
    fields = load_schema().observations
    return {key: moment[fields[key].feature.rpartition(".")[2]] for key in keys}


def act(simulator: ReachSimulator, action: np.ndarray) -> None:
    """Take an action [10]: position and 6-D rotation in metres, gripper from 0 to 1."""
    angles = convert(action[3:9], "rot_6d", "euler_xyz")
    simulator.step(np.concatenate([action[:3], angles]), float(action[9]))


class ReachEnv(MinimalEnv):
    """The host's interface to the simulator. image_dim: rows and columns of the policy's pictures,
    in the metadata by the config's `experiment.env_meta_update_dict`.
    """

    def __init__(self, env_name: str, image_dim: tuple[int, int], **_: Any) -> None:
        super().__init__(env_name)
        self.size = image_dim
        self.simulator = ReachSimulator()

    def reset(self) -> dict[str, np.ndarray]:
        self.simulator.reset(FIRST_SEED + np.random.randint(2**31))
        return self.get_observation()

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, dict]:
        act(self.simulator, action)
        return self.get_observation(), self.get_reward(), self.is_done(), {}

    def get_observation(self) -> dict[str, np.ndarray]:
        keys = [key for key in load_schema().observations if key in ObsUtils.OBS_KEYS_TO_MODALITIES]
        return {
            key: resize_frames(value[None], self.size)[0] if value.ndim == 3 else value
            for key, value in see(self.simulator, keys).items()
        }

    def get_reward(self) -> float:
        return float(self.simulator.success)

    def is_done(self) -> bool:
        return self.simulator.done

    def is_success(self) -> dict[str, bool]:
        return {"task": self.simulator.success}

    def render(self, mode: str = "human", height: int = 512, width: int = 512, **_: Any) -> Any:
        return np.asarray(self.simulator.portrait(width, height))

    @property
    def action_dimension(self) -> int:
        return 10
