"""`robomimic-ddp plot RUN_DIR... -o curves.png`: draws loss, learning rate, speed, and the success
of rollouts of one or several runs.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.commands import figures
from robomimic_ddp.config import paths, tree
from robomimic_ddp.errors import EXIT_DONE, DataError
from robomimic_ddp.monitoring.records import evaluation, history, run_summary
from robomimic_ddp.terminal import print_clean

SUCCESS = "Success_Rate"
AXES = {
    "epochs": "epoch",
    "steps": "optimizer steps",
    "samples": "samples, all ranks",
    "hours": "hours of training and validation",
}
_SMOOTHED_FROM, _PAST_WEIGHT = 30, 0.6
"""A loss is smoothed from this number of epochs on, with this weight for the past."""
_LOGARITHMIC_RATIO = 3
"""The loss axis is logarithmic if the largest loss is more than 3 times the smallest."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which is safe for colour-blind readers."""
_PANELS = (("loss", "rate"), ("loss", "speed")), (("loss", "success"), ("rate", "speed"))
"""The layout without rollouts, and with them."""


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp plot`."""
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN_DIR", help="folder with a history.jsonl")
    what = "default %(default)s; the file name's extension sets the format"
    add("-o", "--output", default="curves.png", metavar="FILE", help=what)
    what = (
        "what the x axis counts; default: epochs, or samples where the runs differ in samples per "
        "step"
    )
    add("--x", choices=tuple(AXES), help=what)


def run(command: str, args: argparse.Namespace) -> int:
    """Draw the figure and return the exit code. Raises UsageError where there is no folder, and
    DataError for runs without a history.
    """
    plot([paths.run_directory(folder) for folder in args.runs], args.output, args.x)
    print_clean(f"curves drawn to {args.output}")
    return EXIT_DONE


def plot(run_directories: Sequence[str | Path], output: str, x: str | None = None) -> None:
    """Draw the runs' histories into the image `output` (the suffix chooses the format). x: a key of
    AXES, None for the default of `--x`.
    """
    plt = figures.pyplot()

    folders = [paths.absolute(folder) for folder in run_directories]
    runs = [(folder, _records(folder)) for folder in folders]
    for folder, records in runs:
        if not any(record["phase"] == "train" for record in records):
            raise DataError(
                f"{folder}: its history has no training epoch yet; wait for the first epoch to end."
            )
    if x is None:
        x = "epochs" if len({_samples_per_step(records) for _, records in runs}) == 1 else "samples"
    has_rollouts = any(
        record["phase"] in ("rollout", "mean") for _, records in runs for record in records
    )
    figure, axes = plt.subplot_mosaic(
        _PANELS[has_rollouts],
        figsize=(10, 6),
        constrained_layout=True,
        gridspec_kw={"width_ratios": (6, 5 + has_rollouts)},
    )
    titles = {
        "loss": f"loss, mean over ranks{_loss_note(runs)}",
        "rate": "learning rate",
        "speed": "samples per second, all ranks",
        "success": "success of rollouts",
    }
    for (folder, records), colour in zip(runs, COLOURS * len(runs)):
        at, name = positions(records, x), _label(folder, runs)
        train, valid = (name, None) if len(runs) > 1 else ("train", "validation")
        train += " (incomplete)" if run_summary.is_incomplete(folder) else ""
        style = {"color": colour, "is_smoothed": True}
        _line(axes["loss"], at, records, "train", "Loss", label=train, **style)
        _line(axes["loss"], at, records, "valid", "Loss", label=valid, linestyle="--", **style)
        _rates(axes["rate"], at, records, name if len(runs) > 1 else "", color=colour)
        speeds = {
            at[record["epoch"]]: record["samples_per_second"]
            for record in records
            if record["phase"] == "train" and record.get("samples_per_second")
        }
        _curve(axes["speed"], [*speeds], [*speeds.values()], color=colour)
        if has_rollouts:
            _successes(axes["success"], at, records, name, colour)
    for panel in axes:
        _finish(axes[panel], titles[panel], x)
    least, most = axes["loss"].dataLim.intervaly
    if 0 < _LOGARITHMIC_RATIO * least < most:
        logarithmic(axes["loss"])
    axes["rate"].set_ylim(bottom=0)
    axes["speed"].set_ylim(bottom=0)
    if has_rollouts:
        axes["success"].set_ylim(-0.03, 1.03)
    figures.save(figure, output)


def _records(folder: Path) -> list[dict[str, Any]]:
    """Return the run's history. Results of `evaluate` replace those of the training's own rollouts
    for the same epoch, except those of a mean of checkpoints.
    """
    evaluated = list(evaluation.as_rollouts(folder))
    replaced = {(r["epoch"], r["env"]) for r in evaluated if r["phase"] == "rollout"}
    records = history.read(folder)
    return evaluated + [r for r in records if (r["epoch"], r.get("env")) not in replaced]


def _loss_note(runs: Sequence[tuple[Path, list]]) -> str:
    """Return what the lines of the losses mean, for the title."""
    phases = [Counter(record["phase"] for record in records) for _, records in runs]
    is_smoothed = any(max(count["train"], count["valid"]) >= _SMOOTHED_FROM for count in phases)
    has_valid = len(runs) > 1 and any("valid" in count for count in phases)
    notes = ["smoothed; faint: each epoch's"] * is_smoothed + ["dashed: validation"] * has_valid
    return f"\n({'; '.join(notes)})" if notes else ""


def positions(records: list, x: str) -> dict[int, float]:
    """Map each epoch to its position on the axis `x`: how much the run had done by its end."""
    epochs = sorted({record["epoch"] for record in records})
    if x == "epochs":
        return {epoch: epoch for epoch in epochs}
    amounts: Counter[int] = Counter()
    for record in records:
        if x == "hours":
            amounts[record["epoch"]] += record.get("seconds", 0.0) / 3600
        elif record["phase"] == "train":
            amounts[record["epoch"]] += record.get(x, 0)
    return dict(zip(epochs, itertools.accumulate(amounts[epoch] for epoch in epochs)))


def _samples_per_step(records: list) -> int:
    newest = [record for record in records if record["phase"] == "train"][-1]
    return round(newest.get("samples", 0) / max(1, newest.get("steps", 1)))


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return the exponentially weighted means of the values so far: each has `weight` times the
    weight of the next.
    """
    means, total, weights = [], 0.0, 0.0
    for value in values:
        total, weights = weight * total + value, weight * weights + 1
        means.append(total / weights)
    return means


def logarithmic(axes: Any) -> None:
    """Make the y axis logarithmic, with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(short_number)
    axes.yaxis.set_minor_formatter(_some_numbers)


def short_number(value: float, _: int = 0) -> str:
    """Return a number such as 0.05, 20k and 1.5M."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * unit or (suffix != "k" and abs(value) >= unit):
            return f"{value / unit:g}{suffix}"
    return f"{value:g}"


def _some_numbers(value: float, _: int = 0) -> str:
    """Label only some of the ticks between powers of ten, so that labels do not overlap."""
    return f"{value:g}" if f"{value:e}"[0] in "235" else ""


def _label(folder: Path, runs: list) -> str:
    """Return the experiment's name, with the time stamp if several runs share it."""
    experiment = folder.parent.name
    is_alone = [directory.parent.name for directory, _ in runs].count(experiment) == 1
    return experiment if is_alone else f"{experiment}/{folder.name}"


def _line(
    axes: Any, at: dict, records: list, phase: str, key: str, is_smoothed: bool = False, **style
) -> None:
    """Draw a value of the log, if it was ever logged."""
    points = [
        (at[record["epoch"]], record["log"][key])
        for record in records
        if record["phase"] == phase
        and tree.is_number(value := record["log"].get(key))
        and math.isfinite(value)  # one that is not would be in all means after it
    ]
    if not points:
        return
    x, y = zip(*points)
    if is_smoothed and len(points) >= _SMOOTHED_FROM:
        axes.plot(x, y, **{**style, "label": None, "alpha": 0.25})
        y = smoothed(y, _PAST_WEIGHT)
    _curve(axes, x, y, **style)


def _curve(axes: Any, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
    axes.plot(x, y, **{"marker": "o" if len(x) < 3 else None, **style})


def _rates(axes: Any, at: dict, records: list, name: str, **style: Any) -> None:
    """Draw the learning rates. name: the run's name, "" if only one run is drawn."""
    keys = sorted(
        {key for record in records for key in record["log"] if key.startswith("Optimizer/")}
    )
    for key in keys:
        label = f"{name} {key.removeprefix('Optimizer/')}".strip()
        label = label if len(keys) > 1 else None  # the colours are those of the losses
        _line(axes, at, records, "train", key, label=label, **style)


def _successes(axes: Any, at: dict, records: list, name: str, colour: str) -> None:
    """Draw the success rate of each environment, with its confidence interval; that of a mean of
    checkpoints as stars at its last epoch.
    """
    rollouts = [record for record in records if record["phase"] in ("rollout", "mean")]
    environments = list(dict.fromkeys(record.get("env") for record in rollouts))
    for number, environment in enumerate(environments):
        of_environment = [record for record in rollouts if record.get("env") == environment]
        label = None if len(environments) == 1 else f"{name} {environment}"
        style = {"color": colour, "linestyle": ("-", "--", ":", "-.")[number % 4]}
        of_environment.sort(key=lambda record: record["epoch"])
        _line(axes, at, of_environment, "rollout", SUCCESS, label=label, **style)
        stars = {"color": colour, "linestyle": "", "marker": "*", "markersize": 10}
        label = f"{label or name}, mean of checkpoints"
        _line(axes, at, of_environment, "mean", SUCCESS, label=label, **stars)
        if spreads := [
            (at[r["epoch"]], *r["interval"])
            for r in of_environment
            if r.get("interval") and r["phase"] == "rollout"
        ]:
            axes.fill_between(*zip(*spreads), color=colour, alpha=0.15, linewidth=0)


def _finish(axes: Any, title: str, x: str) -> None:
    """Set the title, the grid, the legend and the numbers of the axes."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(AXES[x])
    axes.xaxis.get_major_locator().set_params(integer=x == "epochs")
    axes.xaxis.set_major_formatter(short_number)
    axes.yaxis.set_major_formatter(short_number)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9)
