"""What `bench data` is to reach, beside what it did: ratios within rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from robomimic_ddp.bench.data import Measured
from robomimic_ddp.bench.step_rows import interval

MOST_OF_HOST, AIM_OF_HOST = 1 / 3, 1 / 5
MOST_OF_SKIPPING, AIM_OF_SKIPPING = 1 / 20, 1 / 30
LEAST_SHARE_OF_ONE_RANK = 0.9
MOST_OVER_LIMIT = 1.5


@dataclass(frozen=True)
class Target:
    """One ratio. `values`: of each round; reached when their median is at most `most` and at least
    `least`. `aim`: what would be better still.
    """

    name: str
    values: list[float]
    most: float = float("inf")
    least: float = 0.0
    aim: float | None = None

    @property
    def median(self) -> float:
        """Over rounds."""
        return statistics.median(self.values)

    @property
    def is_reached(self) -> bool:
        """Whether the median is within the bounds."""
        return self.least <= self.median <= self.most

    def line(self) -> str:
        """For the terminal."""
        low, high = interval(self.values)
        wanted = f"at most {self.most:.3g}" if self.least == 0 else f"at least {self.least:.3g}"
        if self.most == self.least:
            wanted = f"{self.most:g}"
        aim = f", aim {self.aim:.3g}" if self.aim else ""
        verdict = "reached" if self.is_reached else "MISSED"
        return (
            f"{verdict:8} {self.name}: {self.median:.3g} (95 %: {low:.3g} to {high:.3g}; target "
            f"{wanted}{aim})"
        )


def speed(turn: dict[str, float]) -> float:
    """Frames per second."""
    return turn["frames"] / turn["wall"]


def cost(turn: dict[str, float]) -> float:
    """Processor seconds per frame."""
    return turn["cpu"] / turn["cpu_frames"]


def targets(measured: Measured) -> Iterator[Target]:
    """Those that the measured loaders and worlds allow to judge."""
    worlds = sorted({world for _, world in measured})
    first, last = worlds[0], worlds[-1]
    found = [turns[-1] for (loader, _), turns in measured.items() if loader == "ours"]
    shares = [turn["decoded_over_delivered"] for turn in found]
    worst = max(shares, key=lambda share: abs(share - 1))
    yield Target(f"frames decoded / delivered, worlds {_listed(worlds)}", [worst], 1.0, 1.0)
    if last > first:
        values = _ratios(measured, ("ours", last), ("ours", first), speed)
        name = f"frames/s of a rank, world {last} / world {first}"
        yield Target(name, values, least=LEAST_SHARE_OF_ONE_RANK)
    yield from _compared(measured, first, "host_shaped", MOST_OF_HOST, AIM_OF_HOST)
    if last == 8:
        yield from _compared(measured, last, "skipping", MOST_OF_SKIPPING, AIM_OF_SKIPPING)
    yield from _compared(measured, first, "jpeg_limit", MOST_OVER_LIMIT, None)
    if ("jpeg_limit", first) in measured:
        values = _ratios(measured, ("jpeg_limit", first), ("ours", first), speed)
        name = f"frames/s, jpeg_limit / ours, world {first}"
        yield Target(name, values, MOST_OVER_LIMIT)


def _compared(
    measured: Measured, world: int, other: str, most: float, aim: float | None
) -> Iterator[Target]:
    if (other, world) in measured:
        values = _ratios(measured, ("ours", world), (other, world), cost)
        yield Target(f"CPU s per frame, ours / {other}, world {world}", values, most, aim=aim)


def _ratios(measured: Measured, one: Any, other: Any, of: Callable) -> list[float]:
    """`of` one / `of` the other, round by round (the start comes before the rounds)."""
    return [of(a) / of(b) for a, b in zip(measured[one][1:], measured[other][1:])]


def _listed(worlds: Sequence[int]) -> str:
    return ", ".join(map(str, worlds))
