"""`robomimic-ddp plot RUN_DIR... -o curves.png`: loss, learning rate, throughput, and success of
rollouts, if any, of one or several runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.commands import figures
from robomimic_ddp.errors import EXIT_DONE, DataError
from robomimic_ddp.monitoring import history

SUCCESS = "Success_Rate"
_LOGARITHMIC = 3
"""Ratio of the largest to the smallest loss from which on the axis is logarithmic."""
COLOURS = ("#2a6fdb", "#e07b39", "#2f9e5f", "#b04ac0", "#c23b3b", "#5b6b7a")


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `robomimic-ddp plot`."""
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="folder with a history.jsonl")
    parser.add_argument(
        "-o", "--output", default="curves.png", help="the picture; its ending chooses the format"
    )


def run(command: str, args: argparse.Namespace) -> int:
    """Draws the figure; returns the exit code. Raises DataError for runs without a history."""
    plot(args.runs, args.output)
    print(f"curves drawn to {args.output}")
    return EXIT_DONE


def plot(run_directories: Sequence[str], output: str) -> None:
    """Draws the runs' histories into the image `output` (the suffix chooses the format)."""
    plt = figures.pyplot()

    runs = [(Path(folder), history.read(Path(folder))) for folder in run_directories]
    for folder, records in runs:
        if not any(record["phase"] == "train" for record in records):
            raise DataError(
                f"{folder}: its history has no training epoch yet; wait for the first one to end."
            )
    count = 3 + any(record["phase"] == "rollout" for _, records in runs for record in records)
    figure, axes = plt.subplots(1, count, figsize=(4.7 * count, 4.2), constrained_layout=True)
    loss, rate, speed, *success = axes
    for (folder, records), colour in zip(runs, COLOURS * len(runs)):
        name = _label(folder, runs)
        trained, valid = (name, None) if len(runs) > 1 else ("train", "validation")
        _line(loss, records, "train", "Loss", label=trained, color=colour)
        _line(loss, records, "valid", "Loss", label=valid, color=colour, linestyle="--")
        _rates(rate, records, name, colour)
        train = [record for record in records if record["phase"] == "train"]
        speed.plot(
            [r["epoch"] for r in train],
            [r.get("samples_per_second", 0.0) for r in train],
            marker="o" if len(train) < 3 else None,
            color=colour,
        )
        if success:
            _successes(success[0], records, name, colour)
    has_valid = any(record["phase"] == "valid" for _, records in runs for record in records)
    lines = " (dashed: validation)" if has_valid and len(runs) > 1 else ""
    for axes, title in (
        (loss, f"loss, mean over ranks{lines}"),
        (rate, "learning rate"),
        (speed, "samples per second, all ranks"),
    ):
        finish(axes, title)
    if success:
        finish(success[0], "success of rollouts")
        success[0].set_ylim(-0.03, 1.03)
    least, most = loss.dataLim.intervaly
    if 0 < _LOGARITHMIC * least < most:
        loss.set_yscale("log")
        loss.yaxis.set_major_formatter(_plain_number)
        loss.yaxis.set_minor_formatter(_some_plain_numbers)
    speed.set_ylim(bottom=0)
    figures.save(figure, output)


def _plain_number(value: float, _: int = 0) -> str:
    return f"{value:g}"


def _some_plain_numbers(value: float, _: int = 0) -> str:
    """Labels some ticks between powers of ten, so that labels do not overlap."""
    return f"{value:g}" if f"{value:e}"[0] in "235" else ""


def _label(folder: Path, runs: list) -> str:
    """The experiment's name, with the time stamp if several runs share it."""
    parents = [other.parent.name for other, _ in runs]
    return (
        folder.parent.name
        if parents.count(folder.parent.name) == 1
        else f"{folder.parent.name}/{folder.name}"
    )


def _line(axes: Any, records: list, phase: str, key: str, **style: Any) -> None:
    points = [
        (record["epoch"], record["log"][key])
        for record in records
        if record["phase"] == phase and key in record["log"]
    ]
    if points:
        axes.plot(*zip(*points), marker="o" if len(points) < 3 else None, **style)


def _rates(axes: Any, records: list, name: str, colour: str) -> None:
    keys = sorted(
        {key for record in records for key in record["log"] if key.startswith("Optimizer/")}
    )
    for key in keys:
        label = None if len(keys) == 1 else f"{name} {key[len('Optimizer/') :]}"
        _line(axes, records, "train", key, label=label, color=colour)


def _successes(axes: Any, records: list, name: str, colour: str) -> None:
    """One line for each environment with rollouts."""
    rollouts = [record for record in records if record["phase"] == "rollout"]
    environments = list(dict.fromkeys(record.get("env") for record in rollouts))
    for number, environment in enumerate(environments):
        own = [record for record in rollouts if record.get("env") == environment]
        label = None if len(environments) == 1 else f"{name} {environment}"
        style = ("-", "--", ":", "-.")[number % 4]
        _line(axes, own, "rollout", SUCCESS, label=label, color=colour, linestyle=style)


def finish(axes: Any, title: str, across: str | None = "epoch") -> None:
    """Title, grid and legend; `across` names the whole numbers of the x axis, None: it has names
    for its values, and needs no legend.
    """
    axes.set_title(title, fontsize=11)
    if across is not None:
        axes.set_xlabel(across)
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(_plain_number)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9)
