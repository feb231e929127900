"""Closed-loop success on the demo task:
`python -m scripts.demo.evaluate CHECKPOINT EPISODES FILE ANIMATION`.

The checkpoint's policy acts in episodes that no demonstration shows, and so does an untrained one
of the same config and seed. Both are made by the host's own functions. ANIMATION is a GIF of both
beside the loss.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.data.rlds.pipeline.images import resize_frames
from robomimic_ddp.distributed.atomic_files import atomic_open
from robomimic_ddp.monitoring.records import history
from scripts.demo import animation
from scripts.demo.demonstrations import LONGEST_EPISODE
from scripts.demo.environment import FIRST_SEED, act, see
from scripts.demo.simulator import HEIGHT, WIDTH, ReachSimulator


def untrained(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint with the weights that its config and seed begin with."""
    import robomimic.utils.file_utils as FileUtils
    import robomimic.utils.obs_utils as ObsUtils
    from robomimic.algo import algo_factory

    config, _ = FileUtils.config_from_checkpoint(ckpt_dict=checkpoint)
    ObsUtils.initialize_obs_utils_with_config(config)
    shapes = (checkpoint["shape_metadata"][key] for key in ("all_shapes", "ac_dim"))
    np.random.seed(config.train.seed)
    torch.manual_seed(config.train.seed)
    model = algo_factory(config.algo_name, config, *shapes, torch.device("cpu"))
    return {**checkpoint, "model": model.serialize()}


def success_rate(
    policy: Any,
    episodes: int,
    height: int = HEIGHT,
    width: int = WIDTH,
    films: list[animation.Film] | None = None,
) -> float:
    """The share of `episodes` in which `policy`, a RolloutPolicy, closes the gripper on the block.

    All episodes run side by side: one inference gives each of them its next chunk of actions.
    `films` gets those of the first few episodes.
    """
    torch.manual_seed(0)  # the noise that inference starts from: the same policy, the same result
    policy.start_episode()
    runs = [_Episode(policy, FIRST_SEED + number, height, width) for number in range(episodes)]
    if films is not None:
        for run in runs[: animation.SHOWN]:
            run.film = animation.Film(run.simulator)
            films.append(run.film)
    while active := [run for run in runs if run.active]:
        chunks = _next_actions(policy, [run.observation() for run in active])
        for run, chunk in zip(active, chunks):
            run.act(chunk)
    return float(np.mean([run.simulator.success for run in runs]))


class _Episode:
    """One episode and what the policy remembers of it: its last `frame_stack` moments."""

    def __init__(self, policy: Any, seed: int, height: int, width: int):
        config = policy.policy.global_config
        self.keys = list(config.all_obs_keys)
        self.size = config.observation.image_dim
        self.simulator = ReachSimulator(height, width)
        self.simulator.reset(seed)
        # As in training, the first moment is repeated where there is none before it.
        self.moments = deque([self._see()] * config.train.frame_stack, config.train.frame_stack)
        self.steps, self.active = 0, True
        self.film: animation.Film | None = None

    def observation(self) -> dict[str, np.ndarray]:
        """{host key: [frame_stack, ...]}, oldest first; pictures uint8 [.., H, W, 3]."""
        stacked = {key: np.stack([moment[key] for moment in self.moments]) for key in self.keys}
        return {
            key: resize_frames(values, self.size) if values.ndim == 4 else values
            for key, values in stacked.items()
        }

    def act(self, chunk: np.ndarray) -> None:
        """Carries out `chunk` [Ta, 10]: position, 6-D rotation, gripper; metres, 0 to 1."""
        for number, action in enumerate(chunk):
            act(self.simulator, action)
            if self.film is not None:
                self.film.step()
            if number >= len(chunk) - self.moments.maxlen:  # others are forgotten unseen
                self.moments.append(self._see())
            self.steps += 1
            self.active = not self.simulator.done and self.steps < LONGEST_EPISODE
            if not self.active:
                break

    def _see(self) -> dict[str, np.ndarray]:
        return see(self.simulator, self.keys)


def _next_actions(policy: Any, observations: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The policy's next chunks [N, Ta, A] for N episodes, unnormalised.

    The host's RolloutPolicy prepares observations and undoes the normalisation. The host's
    `get_action` knows one episode: for the call it gives all episodes' whole chunks, end to end.
    """
    algo = policy.policy
    batch = {key: np.stack([one[key] for one in observations]) for key in observations[0]}

    def whole_chunks(obs_dict: dict[str, Any], goal_dict: Any = None) -> Any:
        with torch.no_grad():
            return algo._get_action_trajectory(obs_dict=obs_dict).flatten(0, 1)

    with swapped(algo, "get_action", whole_chunks):
        actions = policy(batch, batched_ob=True)
    return actions.reshape(len(observations), -1, actions.shape[-1])


def evaluate(path: str, episodes: int, film: str) -> dict[str, Any]:
    """Success rates of the checkpoint at `path` before any training and after its own; draws both
    into the GIF `film`.
    """
    import robomimic.utils.file_utils as FileUtils

    checkpoint = FileUtils.maybe_dict_from_checkpoint(ckpt_path=path)
    rates, films = {}, {}
    for key, weights in (("after", checkpoint), ("before", untrained(checkpoint))):
        policy, _ = FileUtils.policy_from_checkpoint(torch.device("cpu"), ckpt_dict=weights)
        films[key] = []
        rates[f"success_{key}"] = success_rate(policy, episodes, films=films[key])
    epochs = history.read(Path(path).parent)
    losses = [line["log"]["Loss"] for line in epochs if line["phase"] == "train"]
    animation.draw(films, rates, losses, Path(film))
    print(f"the policy before and after training: {film}")
    return {"checkpoint": path, "episodes": episodes, **rates}


if __name__ == "__main__":
    with atomic_open(sys.argv[3]) as result:
        json.dump(evaluate(sys.argv[1], int(sys.argv[2]), sys.argv[4]), result, indent=2)
