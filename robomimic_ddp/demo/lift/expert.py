"""A scripted expert for robosuite's Lift: over the cube, down, close, lift. A pure function.

The same place and fingers always get the same action, so that a policy has one answer to learn:
the hand comes down a funnel over the cube instead of switching between heights, closes where it is
low and centred, and rises when the fingers have stopped. Whatever went wrong, it starts over.

Positions in metres in the world frame (z up). Actions are within [-1, 1]: OSC_POSITION's deltas
x, y and z, of which one unit is STEP metres, and the gripper (-1 opens, 1 closes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

ACTION_DIM, STEP = 4, 0.05
NEAR, OPEN, MOVING = 0.012, 0.07, 0.0015
"""Metres: from the cube's centre, level and in height, within which the fingers close; between the
fingers, above which they may close (they open to 0.08, the cube is 0.04 to 0.06 wide); and by which
they move in a step unless something holds them.
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

    `hand` and `cube` are positions [3], `opening` is the distance between the fingers and `moved`
    how much smaller it is than a step before; `phase` is what the call before returned, OPENING at
    first.
    """
    offset = np.asarray(cube, dtype=float) - hand
    beside = float(np.linalg.norm(offset[:2]))
    if beside < NEAR and abs(offset[2]) < NEAR and (phase != OPENING or opening > OPEN):
        held = opening < OPEN and moved < MOVING
        phase = LIFTING if held or phase == LIFTING else CLOSING
        return _action([0.0, 0.0, float(phase == LIFTING)], 1.0), phase
    height = float(np.clip((beside - CENTRED) * STEEPNESS, 0.0, HIGHEST))
    offset[2] += height if opening > OPEN else max(height, CLEAR)
    return _action(np.clip(offset / STEP, -1.0, 1.0), -1.0), OPENING


def away(hand: np.ndarray, cube: np.ndarray, start: Start) -> np.ndarray:
    """The action [4] that brings the hand towards where a demonstration starts."""
    offset = np.asarray(cube, dtype=float) + start.beside - hand
    return _action(np.clip(offset / STEP, -1.0, 1.0), 1.0 if start.closed else -1.0)


def noisy(action: np.ndarray, random: np.random.Generator, spread: float) -> np.ndarray:
    """`action` with Gaussian noise of `spread` on x, y and z, within [-1, 1]."""
    moved = action.copy()
    moved[:3] += random.normal(0.0, spread, 3)
    return np.clip(moved, -1.0, 1.0)


def draw_start(random: np.random.Generator) -> Start:
    """Where a demonstration starts; half of those elsewhere, close to the cube and low."""
    if random.random() >= ELSEWHERE:
        return Start()
    wide, high = (0.05, 0.03) if random.random() < 0.5 else (0.12, 0.15)
    x, y = random.uniform(-wide, wide, 2)
    beside = (float(x), float(y), float(random.uniform(0.0, high)))
    return Start(beside, int(random.integers(4, 21)), bool(random.random() < 0.5))


def _action(motion: Iterable[float], gripper: float) -> np.ndarray:
    return np.array([*motion, gripper])
