"""Compares timings that are taken in turn, so that other load on the machine affects all alike."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_RESAMPLES = 2000


def interleaved(keys: Iterable[Any], rounds: int, ask: Callable[[Any], Any]) -> dict[Any, list]:
    """`rounds` results of `ask` for each key. Every round asks each key once, in a random order."""
    answers: dict[Any, list] = {key: [] for key in keys}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for key in random.Random(number).sample(list(answers), len(answers)):
            answers[key].append(ask(key))
    return answers


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The median over rounds of above / below, and its 95 % bootstrap interval (fixed seed)."""
    values = [one / other for one, other in zip(above, below)]
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES)
    )
    low, high = medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]
    return {"median": statistics.median(values), "low": low, "high": high}


def shown(found: dict[str, float]) -> str:
    """A ratio for the terminal."""
    return f"{found['median']:.3g} ({found['low']:.3g} to {found['high']:.3g})"
