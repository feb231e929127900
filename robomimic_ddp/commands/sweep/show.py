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
    """Yield the table of trials, with means over several seeds, and the failures."""
    trials = sweep.trials()
    best = "highest" if sweep.maximizes else "lowest"
    yield f"{sweep.metric}, the {best} of a trial's epochs"
    is_edited = len({digest for trial in trials for digest in trial.digests}) > 1
    if is_edited:
        yield (
            "The config was edited between trials: only trials with the same digest in the column "
            '"config" were trained with the same one, and only these are averaged.'
        )
    yield ""
    yield from terminal.table(list(_table(sweep, trials, is_edited)), terminal.width())
    yield ""
    yield from ending(trials)


def ending(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield what has failed, and how many trials are in each state."""
    for trial in trials:
        if trial.state == "fail":
            yield f"failed: {trial.name}: {trial.error} ({trial.log})"
    counts = Counter(map(_state, trials))
    yield ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def _state(trial: Trial) -> str:
    is_left = trial.state in ("running", "waiting") and not trial.is_held
    if is_left and trial.is_trained_by_hand:
        return "trained by hand"
    if is_left and trial.state == "running":
        return "stopped"
    return "failed" if trial.state == "fail" else trial.state


def _table(sweep: Sweep, trials: Sequence[Trial], is_edited: bool) -> Iterator[tuple[str, ...]]:
    """Yield a row for each trial, best first, those that differ in their seed alone together; the
    first one of these has their mean and deviation.
    """

    def order(members: Sequence[Trial]) -> float:
        values = _values(members)
        return statistics.fmean(values) * (-1 if sweep.maximizes else 1) if values else math.inf

    groups: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: order([trial])):
        values = {key: value for key, value in trial.values.items() if key != space.SEED}
        alike = [values, trial.digests, "" if trial.values else trial.name]  # not drawn yet
        groups.setdefault(json.dumps(alike), []).append(trial)
    has_means = any(len(_values(members)) > 1 for members in groups.values())
    means = ("mean", "deviation") if has_means else ()
    yield ("trial", "state", "epoch", "best", *means, *["config"] * is_edited, "run")
    for members in sorted(groups.values(), key=order):
        values, cells = _values(members), ("-", "-")
        if len(values) > 1:
            cells = (_number(statistics.fmean(values)), _number(statistics.stdev(values)))
        for trial in members:
            epoch, value, run = _progress(sweep, trial)
            digests = ["+".join(trial.digests) or "-"] * is_edited
            row = (trial.name, _state(trial), epoch, _number(value))
            yield (*row, *cells[: len(means)], *digests, run)
            cells = ("", "")


def _progress(sweep: Sweep, trial: Trial) -> tuple[str, float | None, str]:
    """Return the newest epoch, the value so far, and where the run is or what is wrong with it."""
    run = trial.run()
    if run is None:
        is_missing = trial.state == "complete"
        return "-", trial.value, "its folder is missing" if is_missing else "-"
    where = os.path.relpath(run)
    try:
        curve = trial.curve()
    except DataError:
        return "?", trial.value, f"{where} (its history is damaged)"
    if not curve:
        return "-", trial.value, where
    best = sweep.best(curve.values())
    return str(max(curve)), best if trial.value is None else trial.value, where


def _values(trials: Sequence[Trial]) -> list[float]:
    return [trial.value for trial in trials if trial.value is not None]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
