"""`robomimic-ddp sweep show`: the results of a sweep, best first."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from robomimic_ddp import terminal
from robomimic_ddp.commands.sweep import space
from robomimic_ddp.commands.sweep.entry import Entry
from robomimic_ddp.commands.sweep.study import Sweep
from robomimic_ddp.errors import DataError


def lines(sweep: Sweep) -> Iterator[str]:
    """Yield the table of values, with means over seeds where there are several, the table of
    trials with their run folders, and the failures.
    """
    entries = sweep.entries()
    best = "highest" if sweep.maximizes else "lowest"
    yield f"{sweep.metric}, the {best} of a trial's epochs"
    if _is_edited(entries):
        yield (
            "The config was edited between trials: only trials with the same digest in the column "
            '"config" were trained with the same one, and only these are averaged.'
        )
    columns = terminal.width()
    groups = _groups(sweep, entries)
    if any(len(members) > 1 for _, members in groups):
        yield ""
        yield from terminal.table(list(_table_of_values(sweep, groups)), columns)
    yield ""
    members = [entry for _, of_group in groups for entry in of_group]
    yield from terminal.table(list(_table_of_trials(sweep, members)), columns)
    yield ""
    yield from ending(entries)


def ending(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield what has failed, and how many trials are in each state."""
    for entry in entries:
        if entry.state == "fail":
            yield f"failed: {entry.name}: {entry.error} ({entry.log})"
    yield _count_states(entries)


def _count_states(entries: Sequence[Entry]) -> str:
    counts = Counter(_state(entry) for entry in entries)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def _state(entry: Entry) -> str:
    if entry.state in ("running", "waiting") and entry.is_trained_by_hand and not entry.is_held:
        return "trained by hand"
    if entry.state == "running" and not entry.is_held:
        return "stopped"
    return "failed" if entry.state == "fail" else entry.state


def _is_edited(entries: Sequence[Entry]) -> bool:
    """Whether the sweep's config was not the same for all trainings."""
    return len({digest for entry in entries for digest in entry.digests}) > 1


def _config(entry: Entry) -> str:
    return "+".join(entry.digests) or "-"


def _groups(sweep: Sweep, entries: Sequence[Entry]) -> list[tuple[dict[str, Any], list[Entry]]]:
    """Return the trials that differ in their seed alone as (values and config, trials), best mean
    first, and best trial first in each; those without a value come last.
    """
    is_edited = _is_edited(entries)
    groups: dict[str, tuple[dict[str, Any], list[Entry]]] = {}
    for entry in entries:
        values = {key: value for key, value in entry.values.items() if key != space.SEED}
        if is_edited:
            values["config"] = _config(entry)
        not_drawn = "" if entry.values else entry.name
        key = json.dumps(values, sort_keys=True) + not_drawn
        groups.setdefault(key, (values, []))[1].append(entry)
    sign = -1 if sweep.maximizes else 1

    def order(members: Sequence[Entry]) -> tuple[bool, float]:
        values = _values(members)
        return not values, sign * _mean(values) if values else 0.0

    for _, members in groups.values():
        members.sort(key=lambda entry: order([entry]))
    return sorted(groups.values(), key=lambda group: order(group[1]))


def _table_of_values(sweep: Sweep, groups: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    keys = dict.fromkeys(key for values, _ in groups for key in values)
    varied = [k for k in keys if len({json.dumps(values.get(k)) for values, _ in groups}) > 1]
    short = space.short_names(varied)
    yield (*short.values(), "mean", "deviation", "best", "trials")
    for settings, members in groups:
        values = _values(members)
        yield (
            *(space.shown(settings.get(key, "-")) for key in short),
            _number(_mean(values) if values else None),
            _number(float(np.std(values, ddof=1)) if len(values) > 1 else None),
            _number(sweep.best(values) if values else None),
            _count_states(members),
        )


def _table_of_trials(sweep: Sweep, entries: Sequence[Entry]) -> Iterator[tuple[str, ...]]:
    is_edited = _is_edited(entries)
    yield ("trial", "state", "epoch", "best", *["config"] * is_edited, "run")
    for entry in entries:
        run = entry.run()
        try:
            curve = entry.curve(sweep.metric)
            epoch = str(max(curve)) if curve else "-"
            where = "-" if run is None else os.path.relpath(run)
        except DataError:
            curve, epoch, where = {}, "?", f"{os.path.relpath(run)} (its history is damaged)"
        if entry.state == "complete" and run is None:
            where = "its folder is missing"
        value = entry.value
        if value is None and curve:
            value = sweep.best(list(curve.values()))
        config = [_config(entry)] * is_edited
        yield (entry.name, _state(entry), epoch, _number(value), *config, where)


def _values(entries: Sequence[Entry]) -> list[float]:
    return [e.value for e in entries if e.state == "complete" and e.value is not None]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
