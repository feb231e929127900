"""Demonstrations of Lift in robomimic's HDF5: `python -m robomimic_ddp.demo.lift.write_dataset
--out FILE --attempts N --seed S --processes P`.

Observations and environment come from the host's own EnvRobosuite, so rollouts see the same ones.
For training only: simulator states for playback are not kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp import paths
from robomimic_ddp.demo.lift import expert
from robomimic_ddp.errors import EXIT_REFUSED, DataError, RobomimicDDPError

KEYS = ("robot0_eef_pos", "robot0_gripper_qpos", "object")
"""Low-dimensional observations kept: [3], [2] and [10] (the cube's position and quaternion, and
where it is seen from the hand), in metres.
"""
LONGEST, FEWEST_SUCCESSES = 100, 0.8
_LOOSE = 0.3
"""Largest spread of the noise that the robot's actions carry in an episode."""


def make_env() -> Any:
    """The host's environment for Lift, low-dimensional observations only, nothing rendered.

    The arm's controller holds the hand upright and is given positions: the task needs no rotations.
    """
    from robomimic.envs.env_robosuite import EnvRobosuite
    from robosuite.controllers import load_composite_controller_config, load_part_controller_config

    controllers = load_composite_controller_config(robot="Panda")
    arm = controllers["body_parts"]["right"]
    position = load_part_controller_config(default_controller="OSC_POSITION")
    controllers["body_parts"]["right"] = {**position, "gripper": arm["gripper"]}
    return EnvRobosuite.create_for_data_processing(
        env_name="Lift",
        camera_names=[],
        camera_height=0,
        camera_width=0,
        reward_shaping=False,
        robots="Panda",
        controller_configs=controllers,
        control_freq=20,
    )


def record(env: Any, seed: int, index: int) -> dict[str, Any] | None:
    """Attempt `index` of the data set drawn from `seed`; None where the cube was not lifted.

    Returns actions [T, 4], rewards [T], dones [T], and obs {key: [T, D]} from before each action.
    Actions are what the expert wanted; the robot was given them with noise, so that the expert
    shows how to come back.
    """
    random = np.random.default_rng([seed, index])
    # robosuite draws from a generator of its own, which its parts share: set in place.
    started = np.random.default_rng([seed, index, 1])
    env.base_env.rng.bit_generator.state = started.bit_generator.state
    observation = _begin(env, expert.draw_start(random))
    spread, phase = random.uniform(0.0, _LOOSE), expert.OPENING
    opening = _opening(observation)
    seen, actions, rewards = [], [], []
    while len(actions) < LONGEST and not (rewards and env.is_success()["task"]):
        hand, cube = observation["robot0_eef_pos"], observation["object"][:3]
        before, opening = opening, _opening(observation)
        action, phase = expert.command(hand, cube, opening, before - opening, phase)
        actions.append(action)
        seen.append({key: np.asarray(observation[key], np.float64) for key in KEYS})
        observation, reward, _, _ = env.step(expert.noisy(action, random, spread))
        rewards.append(float(reward))
    if not env.is_success()["task"]:
        return None
    dones = np.arange(len(actions)) == len(actions) - 1
    observations = {key: np.stack([one[key] for one in seen]) for key in KEYS}
    return {
        "actions": np.stack(actions),
        "rewards": np.array(rewards),
        "dones": dones.astype(np.int64),
        "obs": observations,
    }


def _begin(env: Any, start: expert.Start) -> dict[str, np.ndarray]:
    """Resets `env` and goes to where a demonstration starts; returns what is seen there."""
    observation = env.reset()
    for _ in range(start.steps):
        hand, cube = observation["robot0_eef_pos"], observation["object"][:3]
        observation, _, _, _ = env.step(expert.away(hand, cube, start))
    return observation


def _opening(observation: dict[str, np.ndarray]) -> float:
    return float(np.ptp(observation["robot0_gripper_qpos"]))


_env: Any = None
"""Of a worker process."""


def _start() -> None:
    global _env
    _env = make_env()


def _attempt(seed: int, index: int) -> tuple[str, dict[str, Any] | None]:
    return json.dumps(_env.serialize()), record(_env, seed, index)


def attempts(count: int, seed: int, processes: int) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """For each attempt, in order: the environment's metadata as JSON, and `record`'s result."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_start) as pool:
        yield from pool.map(_attempt, [seed] * count, range(count))


def write(out: Path, count: int, seed: int, processes: int) -> int:
    """Writes the successful ones of `count` attempts to `out`; returns their number.

    Raises DataError when the expert fails so often that something else is wrong.
    """
    import h5py

    kept = total = 0
    with h5py.File(out, "w") as file:
        data = file.create_group("data")
        for number, (metadata, episode) in enumerate(attempts(count, seed, processes), start=1):
            data.attrs["env_args"] = metadata
            if episode is not None:
                _write_episode(data.create_group(f"demo_{kept}"), episode)
                kept, total = kept + 1, total + len(episode["actions"])
            if number % 25 == 0:
                print(f"{number} of {count} attempts, {kept} successful", flush=True)
        data.attrs["total"] = total
    if kept < FEWEST_SUCCESSES * count:
        raise DataError(
            f"the scripted expert lifted the cube in {kept} of {count} attempts; expected at least "
            f"{FEWEST_SUCCESSES:.0%}. Another version of robosuite may move differently: use those "
            "of constraints-robosuite.txt."
        )
    print(f"{kept} demonstrations of {total / kept:.0f} steps on average written to {out}")
    return kept


def _write_episode(group: Any, episode: dict[str, Any]) -> None:
    group.attrs["num_samples"] = len(episode["actions"])
    for key in ("actions", "rewards", "dones"):
        group[key] = episode[key]
    for key, values in episode["obs"].items():
        group[f"obs/{key}"] = values


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=paths.writable, required=True, help="the HDF5 file")
    parser.add_argument("--attempts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(options.out, options.attempts, options.seed, options.processes)
    except RobomimicDDPError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
