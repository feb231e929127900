"""Closed-loop evaluation on the demo task: `python -m robomimic_ddp.demo.evaluate CHECKPOINT --out
FILE`.

Loads the checkpoint with the host's own functions and lets the policy act in the simulator, in
episodes that no demonstration shows. An untrained policy of the same config and seed does the same
episodes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp import paths
from robomimic_ddp.demo.expert import LONGEST_EPISODE
from robomimic_ddp.demo.simulator import HEIGHT, WIDTH, ReachSimulator
from robomimic_ddp.rlds.pictures import PictureSize, resize_frames
from robomimic_ddp.rlds.schema_file import load_schema

FIRST_SEED = 2**31
"""Demonstrations draw their simulator seeds below this (`expert.record_episode`)."""
EPISODES = 100


def load_policy(checkpoint: dict[str, Any]) -> Any:
    """The host's RolloutPolicy for a checkpoint's dictionary, on the CPU, its averaged weights in
    use.
    """
    import robomimic.utils.file_utils as FileUtils
    import torch

    policy, _ = FileUtils.policy_from_checkpoint(torch.device("cpu"), ckpt_dict=checkpoint)
    return policy


def untrained(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint with the weights that its config and seed begin with."""
    import robomimic.utils.file_utils as FileUtils
    import robomimic.utils.obs_utils as ObsUtils
    import torch
    from robomimic.algo import algo_factory

    config, _ = FileUtils.config_from_checkpoint(ckpt_dict=checkpoint)
    ObsUtils.initialize_obs_utils_with_config(config)
    shapes = checkpoint["shape_metadata"]
    np.random.seed(config.train.seed)
    torch.manual_seed(config.train.seed)
    model = algo_factory(
        config.algo_name, config, shapes["all_shapes"], shapes["ac_dim"], torch.device("cpu")
    )
    return {**checkpoint, "model": model.serialize()}


def success_rate(
    policy: Any, episodes: int = EPISODES, height: int = HEIGHT, width: int = WIDTH
) -> float:
    """The share of `episodes` episodes in which `policy` closes the gripper on the block.

    All episodes run side by side: one inference gives each of them its next chunk of actions.
    """
    import torch

    torch.manual_seed(0)  # the noise that inference starts from: the same policy, the same result
    policy.start_episode()
    runs = [_Episode(policy, FIRST_SEED + number, height, width) for number in range(episodes)]
    while any(run.goes_on for run in runs):
        active = [run for run in runs if run.goes_on]
        chunks = _next_actions(policy, [run.observation() for run in active])
        for run, chunk in zip(active, chunks):
            run.act(chunk)
    return float(np.mean([run.simulator.success for run in runs]))


class _Episode:
    """One episode and what the policy remembers of it: its last `frame_stack` moments."""

    def __init__(self, policy: Any, seed: int, height: int, width: int):
        config = policy.policy.global_config
        self.keys = list(config.all_obs_keys)
        self.size = PictureSize(*config.observation.image_dim, config.observation.image_filter)
        self.simulator = ReachSimulator(height, width)
        self.simulator.reset(seed)
        # As in training, the first moment is repeated where there is none before it.
        self.moments = deque([self._see()] * config.train.frame_stack, config.train.frame_stack)
        self.steps = 0

    @property
    def goes_on(self) -> bool:
        return not self.simulator.done and self.steps < LONGEST_EPISODE

    def observation(self) -> dict[str, np.ndarray]:
        """{host key: [frame_stack, ...]}, oldest first; pictures uint8 [.., H, W, 3] as the loader
        delivers.
        """
        stacked = {key: np.stack([moment[key] for moment in self.moments]) for key in self.keys}
        for key, values in stacked.items():
            if values.ndim == 4:
                stacked[key] = resize_frames(values, self.size)
        return stacked

    def act(self, chunk: np.ndarray) -> None:
        """Carries out `chunk` [Ta, 10]: position, 6-D rotation, gripper, in metres, radians, 0 to
        1.
        """
        remembered = len(chunk) - self.moments.maxlen
        for number, action in enumerate(chunk):
            if not self.goes_on:
                break
            pose = np.concatenate([action[:3], rot_6d_to_euler(action[3:9])])
            self.simulator.step(pose, float(action[9]))
            self.steps += 1
            if number >= remembered:  # earlier moments are forgotten before the policy is asked
                self.moments.append(self._see())

    def _see(self) -> dict[str, np.ndarray]:
        seen = {**self.simulator.pictures(), **self.simulator.state()}
        places = load_schema().observations
        return {key: seen[places[key].feature.rpartition(".")[2]] for key in self.keys}


def _next_actions(policy: Any, observations: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The policy's next chunks [N, Ta, A] for N episodes, unnormalised.

    The host's RolloutPolicy prepares observations and undoes the normalisation; the host's
    `get_action` knows one episode, so for the call it gives whole chunks of all episodes, end to
    end.
    """
    import torch

    from robomimic_ddp.swapping import swapped

    algo = policy.policy
    batch = {key: np.stack([one[key] for one in observations]) for key in observations[0]}

    def whole_chunks(obs_dict: dict[str, Any], goal_dict: Any = None) -> Any:
        with torch.no_grad():
            return algo._get_action_trajectory(obs_dict=obs_dict).flatten(0, 1)

    with swapped(algo, "get_action", whole_chunks):
        actions = policy(batch, batched_ob=True)
    return actions.reshape(len(observations), -1, actions.shape[-1])


def rot_6d_to_euler(rows: np.ndarray) -> np.ndarray:
    """Two rows of a rotation matrix [6], not exactly orthonormal -> Euler angles (x, y, z) [3].

    The matrix is Rz(z) @ Ry(y) @ Rx(x).
    """
    first = rows[:3] / max(np.linalg.norm(rows[:3]), 1e-9)
    second = rows[3:] - first * (first @ rows[3:])
    second = second / max(np.linalg.norm(second), 1e-9)
    third = np.cross(first, second)
    return np.array(
        [
            np.arctan2(third[1], third[2]),
            -np.arcsin(np.clip(third[0], -1.0, 1.0)),
            np.arctan2(second[0], first[0]),
        ]
    )


def evaluate(path: Path, episodes: int = EPISODES) -> dict[str, Any]:
    """Success rates of the checkpoint at `path` before any training and after its own."""
    import robomimic.utils.file_utils as FileUtils

    started = time.perf_counter()
    checkpoint = FileUtils.maybe_dict_from_checkpoint(ckpt_path=str(path))
    after = success_rate(load_policy(checkpoint), episodes)
    before = success_rate(load_policy(untrained(checkpoint)), episodes)
    return {
        "checkpoint": str(path),
        "episodes": episodes,
        "success_before": before,
        "success_after": after,
        "seconds": time.perf_counter() - started,
    }


def main(arguments: Iterable[str] | None = None) -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--out", type=paths.writable, required=True, help="the result, as JSON")
    args = parser.parse_args(arguments)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(evaluate(args.checkpoint, args.episodes), indent=2) + "\n")


if __name__ == "__main__":
    main()
