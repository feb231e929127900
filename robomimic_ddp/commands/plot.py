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
    has_rollouts = any(record["phase"] == "rollout" for _, records in runs for record in records)
    figure, axes = plt.subplot_mosaic(
        _PANELS[has_rollouts],
        figsize=(10, 6),
        constrained_layout=True,
        gridspec_kw={"width_ratios": (6, 5 + has_rollouts)},
    )
    titles = {
        "loss": "loss, mean over ranks (dashed: validation)",
        "rate": "learning rate",
        "speed": "samples per second, all ranks",
        "success": "success of rollouts",
    }
    for (folder, records), colour in zip(runs, COLOURS * len(runs)):
        at, name = positions(records, x), _label(folder, runs)
        train, valid = (name, None) if len(runs) > 1 else ("train", "validation")
        train += " (incomplete)" if run_summary.is_incomplete(folder) else ""
        style = {"color": colour, "linestyle": "--"}
        _line(axes["loss"], at, records, "train", "Loss", label=train, color=colour)
        _line(axes["loss"], at, records, "valid", "Loss", label=valid, **style)
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
        axes["loss"].set_yscale("log")
    axes["rate"].set_ylim(bottom=0)
    axes["speed"].set_ylim(bottom=0)
    if has_rollouts:
        axes["success"].set_ylim(-0.03, 1.03)
    figures.save(figure, output)


def _records(folder: Path) -> list[dict[str, Any]]:
    """Return the run's history. Results of `evaluate` replace those of the training's own rollouts
    for the same epoch.
    """
    evaluated = [{**result, "phase": "rollout"} for result in evaluation.results(folder)]
    replaced = {(result["epoch"], result["env"]) for result in evaluated}
    records = history.read(folder)
    return evaluated + [r for r in records if (r["epoch"], r.get("env")) not in replaced]


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


def _label(folder: Path, runs: list) -> str:
    """Return the experiment's name, with the time stamp if several runs share it."""
    experiment = folder.parent.name
    is_alone = [directory.parent.name for directory, _ in runs].count(experiment) == 1
    return experiment if is_alone else f"{experiment}/{folder.name}"


def _line(axes: Any, at: dict, records: list, phase: str, key: str, **style: Any) -> None:
    """Draw a value of the log, if it was ever logged."""
    points = [
        (at[record["epoch"]], record["log"][key])
        for record in records
        if record["phase"] == phase
        and tree.is_number(value := record["log"].get(key))
        and math.isfinite(value)
    ]
    if points:
        _curve(axes, *zip(*points), **style)


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
    """Draw the success rate of each environment, with its confidence interval."""
    rollouts = [record for record in records if record["phase"] == "rollout"]
    environments = list(dict.fromkeys(record.get("env") for record in rollouts))
    for number, environment in enumerate(environments):
        of_environment = [record for record in rollouts if record.get("env") == environment]
        label = None if len(environments) == 1 else f"{name} {environment}"
        style = {"color": colour, "linestyle": ("-", "--", ":", "-.")[number % 4]}
        of_environment.sort(key=lambda record: record["epoch"])
        _line(axes, at, of_environment, "rollout", SUCCESS, label=label, **style)
        if spreads := [
            (at[r["epoch"]], *r["interval"]) for r in of_environment if r.get("interval")
        ]:
            axes.fill_between(*zip(*spreads), color=colour, alpha=0.15, linewidth=0)


def _finish(axes: Any, title: str, x: str) -> None:
    """Set the title, the grid and the legend."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(AXES[x])
    axes.xaxis.get_major_locator().set_params(integer=x == "epochs", nbins=6)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9)
