"""`robomimic-ddp sweep show`: the results of a sweep, best first."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from robomimic_ddp import terminal
from robomimic_ddp.commands.sweep import space
from robomimic_ddp.commands.sweep.study import Sweep, Trial
from robomimic_ddp.errors import DataError


def lines(sweep: Sweep) -> Iterator[str]:
    """Yield the table of trials, the failures, and the number of trials in each state."""
    trials = sweep.trials()
    best = "highest" if sweep.maximizes else "lowest"
    yield f"{sweep.metric}, the {best} of each trial's epochs"
    yield ""
    yield from terminal.table(list(_table(sweep, trials)), terminal.width())
    yield ""
    yield from summary(trials)


def summary(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield the failures, and the number of trials in each state."""
    for trial in trials:
        if trial.state == "fail":
            yield f"failed: {trial.name}: {trial.error} ({trial.log})"
    counts = Counter(map(_state, trials))
    yield ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def _state(trial: Trial) -> str:
    if trial.state in ("running", "waiting") and not trial.is_locked:
        return "stopped" if trial.state == "running" else "waiting"
    return "failed" if trial.state == "fail" else trial.state


def _table(sweep: Sweep, trials: Sequence[Trial]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each trial, best first. Trials that differ only in their seed are together,
    and the first of them has their mean and deviation.
    """

    def order(members: Sequence[Trial]) -> float:
        values = _values(members)
        return statistics.fmean(values) * (-1 if sweep.maximizes else 1) if values else math.inf

    groups: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: order([trial])):
        values = {key: value for key, value in trial.values.items() if key != space.SEED}
        name = "" if trial.values else trial.name  # its values have not been drawn yet
        groups.setdefault(json.dumps([values, name]), []).append(trial)
    has_means = any(len(_values(members)) > 1 for members in groups.values())
    means = ("mean", "deviation") if has_means else ()
    yield ("trial", "state", "epoch", "best", *means, "run")
    for members in sorted(groups.values(), key=order):
        values, cells = _values(members), ("-", "-")
        if len(values) > 1:
            cells = (_number(statistics.fmean(values)), _number(statistics.stdev(values)))
        for trial in members:
            epoch, value, run = _progress(sweep, trial)
            yield (trial.name, _state(trial), epoch, _number(value), *cells[: len(means)], run)
            cells = ("", "")


def _progress(sweep: Sweep, trial: Trial) -> tuple[str, float | None, str]:
    """Return the newest epoch, the best value so far, and the run folder or its fault."""
    run = trial.run()
    if run is None:
        is_missing = trial.state == "complete"
        return "-", trial.value, "its folder is missing" if is_missing else "-"
    folder = os.path.relpath(run)
    try:
        curve = trial.curve()
    except DataError:
        return "?", trial.value, f"{folder} (its history is damaged)"
    if not curve:
        return "-", trial.value, folder
    best = sweep.best(curve.values())
    return str(max(curve)), best if trial.value is None else trial.value, folder


def _values(trials: Sequence[Trial]) -> list[float]:
    return [trial.value for trial in trials if trial.value is not None]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
