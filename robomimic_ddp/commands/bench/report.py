"""What `robomimic-ddp bench` prints of the epochs that it has trained."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from robomimic_ddp.terminal import table, width

Epochs = dict[int, list[list[Mapping[str, float]]]]
"""Ranks -> for each round the logs of its measured epochs."""


@dataclass(frozen=True)
class Speed:
    """The medians of one number of ranks; `speed_up` and `efficiency` against the smallest number.

    step_seconds: of the slowest rank; data_wait: share of its time that the worst rank waits for
    batches; gradient_wait: share in which gradients are sent and nothing is computed, None where
    DDP does not say it.
    """

    ranks: int
    samples_per_second: float
    speed_up: float
    efficiency: float
    step_seconds: float
    data_wait: float
    gradient_wait: float | None


def compare(epochs: Epochs) -> Iterator[Speed]:
    """Yield the speed of each number of ranks. Speed-ups are medians of ratios within rounds, so
    that other load on the machine matters less.
    """
    rates = {
        ranks: [statistics.median(log["Time_Samples_Per_Second"] for log in logs) for logs in turns]
        for ranks, turns in epochs.items()
    }
    fewest = min(epochs)
    for ranks, turns in epochs.items():
        speed_up = statistics.median(
            rate / base for rate, base in zip(rates[ranks], rates[fewest], strict=True)
        )
        logs = [log for turn in turns for log in turn]
        sent = [log.get("Time_Communication_Share") for log in logs]
        yield Speed(
            ranks=ranks,
            samples_per_second=statistics.median(rates[ranks]),
            speed_up=speed_up,
            efficiency=speed_up * fewest / ranks,
            step_seconds=statistics.median(1 / log["Time_Steps_Per_Second"] for log in logs),
            data_wait=statistics.median(log["Time_Data_Wait_Share"] for log in logs),
            gradient_wait=None if None in sent else statistics.median(sent),
        )


def lines(speeds: Sequence[Speed]) -> Iterator[str]:
    """Yield the table, for the terminal."""
    titles = ("ranks", "samples/s", "speed-up", "efficiency", "step")
    rows = [
        (
            f"{speed.ranks:5}",
            f"{speed.samples_per_second:9.1f}",
            f"{speed.speed_up:8.2f}",
            f"{speed.efficiency:10.0%}",
            f"{1000 * speed.step_seconds:.1f} ms",
            f"{speed.data_wait:.0%}",
            "-" if speed.gradient_wait is None else f"{speed.gradient_wait:.0%}",
        )
        for speed in speeds
    ]
    yield from table([(*titles, "waits for data", "for gradients"), *rows], width())


def ranks_text(ranks: int) -> str:
    """Return the number with its noun."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"
