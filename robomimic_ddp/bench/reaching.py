"""The demo's simulator as an environment of the host's, for rollouts of a fixed length.

An episode goes on to its horizon whatever the policy does, so that all of them are the same work:
physics, the three camera pictures that a real one would draw, and the policy's inference.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from robomimic_ddp.demo.simulator import ReachSimulator


def roll_out(model: Any, episodes: int, horizon: int) -> dict[str, float]:
    """Collective on several ranks, where the host is edited: `episodes` by the host's own function,
    over all ranks; seconds of this rank, by the clock and of the processor, the
    episodes that it began, and the mean length of one.
    """
    import robomimic.utils.train_utils as TrainUtils
    from robomimic.algo import RolloutPolicy
    from robomimic.envs.wrappers import FrameStackWrapper

    frames = model.algo_config.horizon.observation_horizon
    reach = make_environment()
    env = FrameStackWrapper(reach, num_frames=frames)
    began, computed = time.perf_counter(), time.process_time()
    found = TrainUtils.rollout_with_stats(
        policy=RolloutPolicy(model),
        envs={"reach": env},
        horizon=horizon,
        num_episodes=episodes,
        epoch=1,
    )
    wall, cpu = time.perf_counter() - began, time.process_time() - computed
    model.set_train()
    logs = found[0] if isinstance(found, tuple) else found
    length = float(logs["reach"]["Horizon"])
    return {"wall": wall, "cpu": cpu, "episodes": reach.begun, "horizon": length}


def make_environment() -> Any:
    """An instance of the host's EnvBase, whose module is imported here."""
    from robomimic.envs.env_base import EnvBase

    reach = type("Reach", (_Reach, EnvBase), {})
    reach.__abstractmethods__ = frozenset()  # rollouts use no state, goal or serialisation
    return reach()


class _Reach:
    """The part of EnvBase that rollouts use. Actions [7]: position, Euler angles, gripper."""

    name, action_dimension, rollout_exceptions = "reach", 7, ()

    def __init__(self) -> None:
        self.simulator, self.begun = ReachSimulator(), 0

    def reset(self) -> dict[str, np.ndarray]:
        self.begun += 1
        self.simulator.reset(int(np.random.randint(2**31)))
        return self.get_observation()

    def step(self, action: np.ndarray) -> tuple:
        self.simulator.step(np.asarray(action[:6], float), float(action[6]))
        return self.get_observation(), self.get_reward(), self.is_done(), {}

    def get_observation(self) -> dict[str, np.ndarray]:
        simulator = self.simulator
        self.pictures = simulator.pictures()
        opening = simulator.gripper
        return {
            "robot0_eef_pos": simulator.tip.astype(np.float32),
            "robot0_eef_quat": quaternion(simulator.angles),
            "robot0_gripper_qpos": np.array([opening, -opening], np.float32),
        }

    def get_reward(self) -> float:
        return float(self.simulator.success)

    def is_done(self) -> bool:
        return False

    def is_success(self) -> dict[str, bool]:
        return {"task": self.simulator.success}


def quaternion(angles: np.ndarray) -> np.ndarray:
    """Euler angles [3] (x, y, z) of Rz @ Ry @ Rx -> (x, y, z, w) [4]."""
    (cx, cy, cz), (sx, sy, sz) = np.cos(angles / 2), np.sin(angles / 2)
    return np.array(
        [
            sx * cy * cz - cx * sy * sz,
            cx * sy * cz + sx * cy * sz,
            cx * cy * sz - sx * sy * cz,
            cx * cy * cz + sx * sy * sz,
        ],
        np.float32,
    )
