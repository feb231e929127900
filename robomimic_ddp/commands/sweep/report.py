"""What a sweep shows: a live table while it trains, the table of its results, and their picture."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from robomimic_ddp import terminal
from robomimic_ddp.commands import figures, plot
from robomimic_ddp.commands.sweep import space
from robomimic_ddp.commands.sweep.study import Entry, Sweep
from robomimic_ddp.errors import DataError

Show = Callable[..., None]
"""`show(line)` prints a line; `show()` renews the live table."""
_MOST_CURVES = 10


@contextmanager
def live(worker: Any) -> Iterator[Show]:
    """The table of `worker.jobs` on a terminal, plain lines elsewhere."""
    if not sys.stdout.isatty():
        yield lambda line=None: None if line is None else print(line, flush=True)
        return
    from rich.live import Live

    with Live(_table(worker), refresh_per_second=4, transient=True) as view:

        def show(line: str | None = None) -> None:
            if line is not None:
                view.console.print(line, markup=False, highlight=False)
            view.update(_table(worker))

        yield show


def _table(worker: Any) -> Any:
    from rich.table import Table

    metric = worker.sweep.metric
    table = Table(box=None, pad_edge=False, caption=summary(worker.sweep), caption_justify="left")
    for name in ("trial", "epoch", metric, "best", "device"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for job in worker.jobs.values():
        curve = _curve(job.entry, metric)
        values = [curve[epoch] for epoch in sorted(curve)]
        last, best = (values[-1], worker.sweep.best(values)) if values else (None, None)
        device = job.slot.visible or f"slot {job.slot.number}"
        cells = (str(max(curve, default="-")), _number(last), _number(best), device)
        table.add_row(job.entry.name, *cells)
    return table


def summary(sweep: Sweep) -> str:
    """How many trials are in each state."""
    return _states(sweep.entries())


def _states(entries: Sequence[Entry]) -> str:
    counts = Counter(
        "stopped"
        if entry.state == "running" and (entry.has_stopped or not entry.is_held)
        else entry.state
        for entry in entries
    )
    return ", ".join(f"{n} {'failed' if s == 'fail' else s}" for s, n in sorted(counts.items()))


def end(sweep: Sweep) -> Iterator[str]:
    """The last lines: what has failed, and how many trials are in each state."""
    for entry in sweep.entries():
        if entry.state == "fail":
            yield f"failed: {entry.name}: {entry.error} ({entry.log})"
    yield summary(sweep)


def groups(sweep: Sweep) -> list[tuple[dict[str, Any], list[Entry]]]:
    """Trials that differ in their seed alone, as (their common values, trials); best mean first,
    those without a value last.
    """
    found: dict[str, tuple[dict[str, Any], list[Entry]]] = {}
    for entry in sweep.entries():
        values = {key: value for key, value in entry.values.items() if key != space.SEED}
        unknown = "" if entry.values else entry.name  # its values are not drawn yet
        key = json.dumps(values, sort_keys=True) + unknown
        found.setdefault(key, (values, []))[1].append(entry)

    def place(group: tuple[dict[str, Any], list[Entry]]) -> tuple[bool, float]:
        values = _finals(group[1])
        mean = statistics.fmean(values) if values else 0.0
        return not values, -mean if sweep.maximizes else mean

    return sorted(found.values(), key=place)


def lines(sweep: Sweep) -> Iterator[str]:
    """The table of results, and what has failed."""
    found = groups(sweep)
    short = _varied([values for values, _ in found])
    best = "highest" if sweep.maximizes else "lowest"
    yield f"{sweep.metric}, the {best} of a trial's epochs: mean and deviation over its seeds"
    table = [(*short.values(), "mean", "deviation", "best", "trials", "best is")]
    for values, entries in found:
        finals = _finals(entries)
        top = sweep.best(finals) if finals else None
        table.append(
            (
                *(space.shown(values.get(key, "-")) for key in short),
                _number(statistics.fmean(finals) if finals else None),
                _number(statistics.stdev(finals) if len(finals) > 1 else None),
                _number(top),
                _states(entries),
                next((f"{one.index:03d}" for one in entries if finals and one.value == top), ""),
            )
        )
    columns = list(zip(*table))
    if all(len(entries) == 1 for _, entries in found):  # a mean and a deviation of one say nothing
        del columns[len(short) : len(short) + 2]
    yield from terminal.table(list(zip(*columns)), terminal.width())
    best_mean = _finals(found[0][1])
    if best_mean:
        top = next(one for one in found[0][1] if one.value == sweep.best(best_mean))
        yield f"best of the first line: {top.run() or top.folder}"
    yield from end(sweep)


def _varied(settings: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The keys in which settings differ -> their short names."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return space.labels(
        [key for key in keys if len({json.dumps(one.get(key)) for one in settings}) > 1]
    )


def draw(sweep: Sweep, output: str) -> None:
    """The metric by epoch, a line for each group (mean over seeds, band: deviation), and its final
    values, into the picture `output`. Raises DataError.
    """
    plt = figures.pyplot()
    found = [
        (values, curves)
        for values, entries in groups(sweep)
        if (curves := [curve for one in entries if (curve := _curve(one, sweep.metric))])
    ][:_MOST_CURVES]
    if not found:
        raise DataError(
            f"{sweep.directory}: no trial has a {sweep.metric} yet; train with robomimic-ddp sweep "
            "run, and wait for the first epoch's end."
        )
    short = _varied([values for values, _ in found])
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), constrained_layout=True)
    for number, (values, curves) in enumerate(found):
        colour = plot.COLOURS[number % len(plot.COLOURS)]
        style = "-" if number < len(plot.COLOURS) else "--"
        named = [f"{name} {space.shown(values.get(key))}" for key, name in short.items()]
        label = ", ".join(named) or "all"
        epochs = sorted({epoch for curve in curves for epoch in curve})
        at = [[curve[epoch] for curve in curves if epoch in curve] for epoch in epochs]
        means = [statistics.fmean(one) for one in at]
        spread = [statistics.stdev(one) if len(one) > 1 else 0.0 for one in at]
        marker = "o" if len(epochs) < 3 else None
        left.plot(epochs, means, color=colour, linestyle=style, label=label, marker=marker)
        low, high = ([m + sign * s for m, s in zip(means, spread)] for sign in (-1, 1))
        left.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
        finals = [sweep.best(list(curve.values())) for curve in curves]
        right.plot([label] * len(finals), finals, "o", color=colour, alpha=0.5)
        right.plot([label], [statistics.fmean(finals)], "_", color=colour, markersize=24)
    plot.finish(left, f"{sweep.metric}, mean over seeds")
    plot.finish(right, "best epoch of each trial (bar: mean)", None)
    right.tick_params(axis="x", rotation=30)
    right.margins(x=0.15)
    figures.save(figure, output)


def _finals(entries: Sequence[Entry]) -> list[float]:
    return [one.value for one in entries if one.state == "complete" and one.value is not None]


def _curve(entry: Entry, metric: str) -> dict[int, float]:
    """A damaged history shows nothing."""
    try:
        return entry.curve(metric)
    except DataError:
        return {}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
