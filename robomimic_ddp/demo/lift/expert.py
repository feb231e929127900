"""A scripted expert for robosuite's Lift: over the cube, down, close, lift. A pure function.

A grip that holds nothing opens again, and the hand tries once more: policies must have seen that.

Positions in metres in the world frame (z up). Actions are OSC_POSE deltas within [-1, 1]: x, y, z,
three rotations, gripper (-1 opens, 1 closes); one unit of x, y or z is STEP metres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ACTION_DIM, STEP = 7, 0.05
HOVER, ALIGNED, LOW, EMPTY, OPEN = 0.06, 0.015, 0.012, 0.034, 0.07
"""Metres: height over the cube on the way to it; distance from its axis at which the hand goes
down; height over its centre at which the fingers close; and their distance from each other below
which they hold nothing and above which they may close (the cube is 0.04 to 0.044 wide).
"""
CLOSING_STEPS = 4
"""Steps for which the fingers close before the hand rises."""
MISSING = 0.25
"""The share of demonstrations whose first grip misses the cube."""


@dataclass(frozen=True)
class Style:
    """How one demonstration differs from another: speed (largest command in each direction), and
    the point beside the cube's centre that it aims at, in metres [2].
    """

    speed: float = 1.0
    aim: tuple[float, float] = (0.0, 0.0)


def command(
    hand: np.ndarray, cube: np.ndarray, opening: float, closing: int, style: Style = Style()
) -> tuple[np.ndarray, int]:
    """The expert's action [7] and the new number of steps for which the fingers have been closing.

    `hand` and `cube` are positions [3], `opening` is the distance between the fingers; `closing` is
    what the call before returned, 0 at first.
    """
    target = np.asarray(cube, dtype=float) + [*style.aim, 0.0]
    offset = target - hand
    aligned = np.linalg.norm(offset[:2]) < ALIGNED
    if closing and opening < EMPTY:
        closing = 0
    elif closing or (aligned and abs(offset[2]) < LOW and opening > OPEN):
        closing += 1
        rising = closing > CLOSING_STEPS
        return _action([0.0, 0.0, style.speed if rising else 0.0], 1.0), closing
    if not aligned:
        offset[2] += HOVER
    return _action(np.clip(offset / STEP, -style.speed, style.speed), -1.0), 0


def noisy(action: np.ndarray, random: np.random.Generator, spread: float) -> np.ndarray:
    """`action` with Gaussian noise of `spread` on x, y and z, within [-1, 1]."""
    moved = action.copy()
    moved[:3] += random.normal(0.0, spread, 3)
    return np.clip(moved, -1.0, 1.0)


def draw_styles(random: np.random.Generator) -> tuple[Style, Style]:
    """A demonstrator's style until its first grip, and after one that held nothing.

    Some aim in front of the cube or behind it at first.
    """
    aim = random.uniform(-0.006, 0.006, 2)
    style = Style(float(random.uniform(0.5, 1.0)), (float(aim[0]), float(aim[1])))
    if random.random() >= MISSING:
        return style, style
    beside = random.choice([-1.0, 1.0]) * random.uniform(0.035, 0.05)
    return Style(style.speed, (float(beside), style.aim[1])), style


def _action(motion: object, gripper: float) -> np.ndarray:
    action = np.zeros(ACTION_DIM)
    action[:3], action[-1] = motion, gripper
    return action
