"""A scripted expert for robosuite's Lift: over the cube, down, close, lift. A pure function.

Positions in metres in the world frame (z up). Actions are OSC_POSE deltas within [-1, 1]: x, y, z,
three rotations, gripper (-1 opens, 1 closes); one unit of x, y or z is STEP metres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ACTION_DIM, STEP = 7, 0.05
HOVER, ALIGNED, LOW, GRIPPING = 0.06, 0.015, 0.012, 0.062
"""Metres: height over the cube on the way to it; distance from its axis at which the hand goes
down; height over its centre at which the fingers close; and their distance from each other below
which they hold it (open: 0.08; the cube is 0.04 to 0.044 wide, and its diagonal 0.062).
"""
CLOSING_STEPS = 4
"""Steps for which the fingers close before the hand rises."""


@dataclass(frozen=True)
class Style:
    """How one demonstration differs from another: speed (largest command in each direction), and
    the point beside the cube's centre that it aims at, in metres [2].
    """

    speed: float = 1.0
    aim: tuple[float, float] = (0.0, 0.0)


def command(
    hand: np.ndarray, cube: np.ndarray, closing: int, style: Style = Style()
) -> tuple[np.ndarray, int]:
    """The expert's action [7] and the new number of steps for which the fingers have been closing.

    `hand` and `cube` are positions [3]; `closing` is what the call before returned, 0 at first.
    """
    target = np.asarray(cube, dtype=float) + [*style.aim, 0.0]
    offset = target - hand
    aligned = np.linalg.norm(offset[:2]) < ALIGNED
    if closing or (aligned and abs(offset[2]) < LOW):
        closing += 1
        rising = closing > CLOSING_STEPS
        return _action([0.0, 0.0, style.speed if rising else 0.0], 1.0), closing
    if not aligned:
        offset[2] += HOVER
    return _action(np.clip(offset / STEP, -style.speed, style.speed), -1.0), 0


def noisy(action: np.ndarray, random: np.random.Generator, spread: float) -> np.ndarray:
    """`action` with Gaussian noise of `spread` on its motion, within [-1, 1]."""
    moved = action.copy()
    moved[:-1] += random.normal(0.0, spread, ACTION_DIM - 1) * ([1.0] * 3 + [0.2] * 3)
    return np.clip(moved, -1.0, 1.0)


def draw_style(random: np.random.Generator) -> Style:
    """A demonstrator's style."""
    aim = random.uniform(-0.006, 0.006, 2)
    return Style(float(random.uniform(0.5, 1.0)), (float(aim[0]), float(aim[1])))


def _action(motion: object, gripper: float) -> np.ndarray:
    action = np.zeros(ACTION_DIM)
    action[:3], action[-1] = motion, gripper
    return action
