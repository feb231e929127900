"""What `robomimic-ddp bench` prints and draws of the epochs that it has trained."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from robomimic_ddp.commands import figures
from robomimic_ddp.commands.plot import COLOURS
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


def draw(speeds: Sequence[Speed], output: str) -> None:
    """Draw samples/s next to the ideal, and what the time of a step is spent on."""
    plt = figures.pyplot()
    figure, (speed_axes, share_axes) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    ranks, first = [speed.ranks for speed in speeds], speeds[0]
    ideal = [first.samples_per_second * count / first.ranks for count in ranks]
    rates = [speed.samples_per_second for speed in speeds]
    speed_axes.plot(ranks, ideal, linestyle="--", color="#8b98a9", label="ideal")
    speed_axes.plot(ranks, rates, marker="o", color=COLOURS[0], label="measured (efficiency)")
    for speed in speeds[1:]:
        point = (speed.ranks, speed.samples_per_second)
        style = {"textcoords": "offset points", "xytext": (0, -15), "ha": "center"}
        speed_axes.annotate(f"{speed.efficiency:.0%}", point, **style)
    speed_axes.set_title("samples per second, all ranks", fontsize=11)
    speed_axes.set_xticks(ranks)
    speed_axes.set_xlabel("ranks")
    speed_axes.set_ylim(bottom=0)
    speed_axes.grid(alpha=0.25)
    names, begin = [str(count) for count in ranks], [0.0] * len(speeds)
    for label, colour, shares in (
        ("compute", COLOURS[2], [_computing(speed) for speed in speeds]),
        ("wait for gradients", COLOURS[1], [speed.gradient_wait or 0.0 for speed in speeds]),
        ("wait for data", COLOURS[4], [speed.data_wait for speed in speeds]),
    ):
        percent = [100 * share for share in shares]
        share_axes.barh(names, percent, 0.5, left=begin, color=colour, label=label)
        begin = [before + share for before, share in zip(begin, percent, strict=True)]
    share_axes.set_title("time of a step, in %", fontsize=11)
    share_axes.set_xlim(0, 100)
    share_axes.set_ylabel("ranks")
    share_axes.invert_yaxis()
    speed_axes.legend(frameon=False, fontsize=9)
    share_axes.legend(
        frameon=False, fontsize=9, ncol=3, loc="upper center", bbox_to_anchor=(0.5, -0.1)
    )
    for axes in (speed_axes, share_axes):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figures.save(figure, output)


def _computing(speed: Speed) -> float:
    """Return the rest of a step's time: the two waits may be those of different ranks."""
    return max(0.0, 1 - speed.data_wait - (speed.gradient_wait or 0.0))


def ranks_text(ranks: int) -> str:
    """Return the number with its noun."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"
