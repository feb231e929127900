"""Lift's demonstrations in robomimic's HDF5: `python -m scripts.demo.lift_data FILE ATTEMPTS SEED`.

A scripted expert: over the cube, down, close, lift. The same place and fingers always get the same
action, so that a policy has one answer to learn: the hand comes down a funnel over the cube, closes
where it is low and centred, and rises when the fingers have stopped. Whatever went wrong, it starts
over. Positions in metres in the world frame (z up). Actions are within [-1, 1]: OSC_POSITION's x, y
and z, of which one unit is STEP metres, and the gripper (-1 opens, 1 closes).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

KEYS = ("robot0_eef_pos", "robot0_gripper_qpos", "object")
"""Low-dimensional observations kept: [3], [2] and [10] (the cube's position and quaternion, and
where it is seen from the hand), in metres.
"""
LONGEST, FEWEST_SUCCESSES, LOOSE = 100, 0.8, 0.3
"""Steps of a demonstration; share of attempts; largest spread of the noise on the robot's actions.
"""
ACTION_DIM, STEP = 4, 0.05
NEAR, OPEN, MOVING = 0.012, 0.07, 0.0015
"""Metres: from the cube's centre, level and in height, within which the fingers close; between the
fingers, above which they may close (they open to 0.08, the cube is 0.04 to 0.06 wide); and by which
they move in a step unless something is between them.
"""
CENTRED, STEEPNESS, HIGHEST, CLEAR = 0.006, 6.0, 0.08, 0.06
"""The funnel: level distance from the cube's axis within which the hand may be at the cube's
height, metres up for each metre beyond, up to the highest; and the least height while the fingers
are not open.
"""
OPENING, CLOSING, LIFTING = "opening", "closing", "lifting"
ELSEWHERE = 0.6
"""The share of demonstrations that start elsewhere than where the robot stands after a reset."""


@dataclass(frozen=True)
class Start:
    """Where a demonstration starts: the hand moves towards a point beside the cube's centre, in
    metres [3], for some steps, its fingers closing or opening.
    """

    beside: tuple[float, float, float] = (0.0, 0.0, 0.0)
    steps: int = 0
    closed: bool = False


def command(
    hand: np.ndarray, cube: np.ndarray, opening: float, moved: float, phase: str
) -> tuple[np.ndarray, str]:
    """The expert's action [4] and its new phase.

    `hand` and `cube` are positions [3], `opening` is the distance between the fingers, `moved` how
    much smaller it is than a step before; `phase` is the last call's, OPENING at first.
    """
    offset = np.asarray(cube, dtype=float) - hand
    beside = float(np.linalg.norm(offset[:2]))
    if beside < NEAR and abs(offset[2]) < NEAR and (phase != OPENING or opening > OPEN):
        held = opening < OPEN and moved < MOVING
        phase = LIFTING if held or phase == LIFTING else CLOSING
        return np.array([0.0, 0.0, float(phase == LIFTING), 1.0]), phase
    height = float(np.clip((beside - CENTRED) * STEEPNESS, 0.0, HIGHEST))
    offset[2] += height if opening > OPEN else max(height, CLEAR)
    return np.append(np.clip(offset / STEP, -1.0, 1.0), -1.0), OPENING


def away(hand: np.ndarray, cube: np.ndarray, start: Start) -> np.ndarray:
    """The action [4] that brings the hand towards where a demonstration starts."""
    offset = np.asarray(cube, dtype=float) + start.beside - hand
    return np.append(np.clip(offset / STEP, -1.0, 1.0), 1.0 if start.closed else -1.0)


def noisy(action: np.ndarray, random: np.random.Generator, spread: float) -> np.ndarray:
    """`action` with Gaussian noise of `spread` on x, y and z, within [-1, 1]."""
    return np.clip(action + [*random.normal(0.0, spread, 3), 0.0], -1.0, 1.0)


def draw_start(random: np.random.Generator) -> Start:
    """Where a demonstration starts; half of those elsewhere, close to the cube and low."""
    if random.random() >= ELSEWHERE:
        return Start()
    wide, high = (0.05, 0.03) if random.random() < 0.5 else (0.12, 0.15)
    beside = (*random.uniform(-wide, wide, 2).tolist(), random.uniform(0.0, high))
    return Start(beside, int(random.integers(4, 21)), bool(random.random() < 0.5))


def make_env() -> Any:
    """The host's environment for Lift; the controller takes positions, the hand is upright."""
    from robomimic.envs.env_robosuite import EnvRobosuite
    from robosuite.controllers import load_composite_controller_config, load_part_controller_config

    controllers = load_composite_controller_config(robot="Panda")
    arm = controllers["body_parts"]["right"]
    position = load_part_controller_config(default_controller="OSC_POSITION")
    controllers["body_parts"]["right"] = {**position, "gripper": arm["gripper"]}
    sparse = {"camera_names": [], "camera_height": 0, "camera_width": 0, "reward_shaping": False}
    robot = {"robots": "Panda", "controller_configs": controllers, "control_freq": 20}
    return EnvRobosuite.create_for_data_processing(env_name="Lift", **sparse, **robot)


def record(env: Any, seed: int, index: int) -> dict[str, Any] | None:
    """Attempt `index` of the dataset drawn from `seed`; None where the cube was not lifted.

    Returns actions [T, 4], rewards [T], dones [T], and obs/KEY [T, D] from before each action.
    Actions are what the expert wanted; the robot was given them with noise, so that the expert
    shows how to come back.
    """
    random = np.random.default_rng([seed, index])
    # robosuite draws from a separate generator, which its parts share: set in place.
    started = np.random.default_rng([seed, index, 1])
    env.base_env.rng.bit_generator.state = started.bit_generator.state
    observation, start = env.reset(), draw_start(random)
    for _ in range(start.steps):
        hand, cube = observation["robot0_eef_pos"], observation["object"][:3]
        observation, _, _, _ = env.step(away(hand, cube, start))
    spread, phase = random.uniform(0.0, LOOSE), OPENING
    opening = float(np.ptp(observation["robot0_gripper_qpos"]))
    seen, actions, rewards = [], [], []
    while len(actions) < LONGEST and not (rewards and env.is_success()["task"]):
        hand, cube = observation["robot0_eef_pos"], observation["object"][:3]
        before, opening = opening, float(np.ptp(observation["robot0_gripper_qpos"]))
        action, phase = command(hand, cube, opening, before - opening, phase)
        actions.append(action)
        seen.append({key: np.asarray(observation[key], np.float64) for key in KEYS})
        observation, reward, _, _ = env.step(noisy(action, random, spread))
        rewards.append(float(reward))
    if not env.is_success()["task"]:
        return None
    dones = np.arange(len(actions)) == len(actions) - 1
    return {
        "actions": np.stack(actions),
        "rewards": np.array(rewards),
        "dones": dones.astype(np.int64),
        **{f"obs/{key}": np.stack([one[key] for one in seen]) for key in KEYS},
    }


def write(out: Path, count: int, seed: int) -> None:
    """Writes the successful ones of `count` attempts; a file `out` is complete.

    Ends the process when the expert fails so often that something else is wrong.
    """
    import h5py

    kept = total = 0
    env, unfinished = make_env(), out.with_suffix(".incomplete")
    out.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(unfinished, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(env.serialize())
        for number in range(count):
            episode = record(env, seed, number)
            if episode is not None:
                group = data.create_group(f"demo_{kept}")
                group.attrs["num_samples"] = len(episode["actions"])
                for key, values in episode.items():
                    group[key] = values
                kept, total = kept + 1, total + len(episode["actions"])
        data.attrs["total"] = total
    if kept < FEWEST_SUCCESSES * count:
        raise SystemExit(
            f"error: the expert lifted the cube in {kept} of {count} attempts; expected at least "
            f"{FEWEST_SUCCESSES:.0%}. Use the versions of constraints-robosuite.txt."
        )
    unfinished.replace(out)
    print(f"{kept} demonstrations of {total / kept:.0f} steps on average written to {out}")


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
