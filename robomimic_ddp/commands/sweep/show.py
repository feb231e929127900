"""`robomimic-ddp sweep show`: the results of a sweep, best first."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from robomimic_ddp import terminal
from robomimic_ddp.commands.sweep import space
from robomimic_ddp.commands.sweep.entry import Entry
from robomimic_ddp.commands.sweep.study import Sweep
from robomimic_ddp.errors import DataError


def lines(sweep: Sweep) -> Iterator[str]:
    """Yield the table of trials, with means over several seeds, and the failures."""
    entries = sweep.entries()
    best = "highest" if sweep.maximizes else "lowest"
    yield f"{sweep.metric}, the {best} of a trial's epochs"
    is_edited = len({digest for entry in entries for digest in entry.digests}) > 1
    if is_edited:
        yield (
            "The config was edited between trials: only trials with the same digest in the column "
            '"config" were trained with the same one, and only these are averaged.'
        )
    yield ""
    yield from terminal.table(list(_table(sweep, entries, is_edited)), terminal.width())
    yield ""
    yield from ending(entries)


def ending(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield what has failed, and how many trials are in each state."""
    for entry in entries:
        if entry.state == "fail":
            yield f"failed: {entry.name}: {entry.error} ({entry.log})"
    counts = Counter(_state(entry) for entry in entries)
    yield ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def _state(entry: Entry) -> str:
    if entry.state in ("running", "waiting") and entry.is_trained_by_hand and not entry.is_held:
        return "trained by hand"
    if entry.state == "running" and not entry.is_held:
        return "stopped"
    return "failed" if entry.state == "fail" else entry.state


def _groups(sweep: Sweep, entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return the trials that differ in their seed alone, best mean first, and the best trial first
    in each; those without a value come last.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        values = {key: value for key, value in entry.values.items() if key != space.SEED}
        not_drawn = "" if entry.values else entry.name
        groups.setdefault(json.dumps([values, [*entry.digests], not_drawn]), []).append(entry)

    def order(members: Sequence[Entry]) -> tuple[bool, float]:
        values = _values(members)
        mean = statistics.fmean(values) if values else 0.0
        return not values, -mean if sweep.maximizes else mean

    for members in groups.values():
        members.sort(key=lambda entry: order([entry]))
    return sorted(groups.values(), key=order)


def _table(sweep: Sweep, entries: Sequence[Entry], is_edited: bool) -> Iterator[tuple[str, ...]]:
    """Yield a row for each trial; the first one of a group has its mean and deviation."""
    groups = _groups(sweep, entries)
    has_means = any(len(_values(members)) > 1 for members in groups)
    means = ("mean", "deviation") if has_means else ()
    yield ("trial", "state", "epoch", "best", *means, *["config"] * is_edited, "run")
    for members in groups:
        values = _values(members)
        is_mean = len(values) > 1
        mean = _number(statistics.fmean(values) if is_mean else None)
        deviation = _number(statistics.stdev(values) if is_mean else None)
        for number, entry in enumerate(members):
            epoch, value, run = _progress(sweep, entry)
            mean_cells = (mean, deviation) if number == 0 else ("", "")
            digests = ["+".join(entry.digests) or "-"] * is_edited
            cells = (entry.name, _state(entry), epoch, _number(value))
            yield (*cells, *mean_cells[: len(means)], *digests, run)


def _progress(sweep: Sweep, entry: Entry) -> tuple[str, Any, str]:
    """Return the newest epoch, the value so far, and where the run is or what is wrong with it."""
    run = entry.run()
    if run is None:
        is_missing = entry.state == "complete"
        return "-", entry.value, "its folder is missing" if is_missing else "-"
    where = os.path.relpath(run)
    try:
        curve = entry.curve(sweep.metric)
    except DataError:
        return "?", entry.value, f"{where} (its history is damaged)"
    if not curve:
        return "-", entry.value, where
    best = sweep.best(list(curve.values()))
    return str(max(curve)), best if entry.value is None else entry.value, where


def _values(entries: Sequence[Entry]) -> list[float]:
    return [e.value for e in entries if e.state == "complete" and e.value is not None]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
