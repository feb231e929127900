"""`robomimic-ddp watch RUN_DIR`: a live table of all ranks, from their heartbeat files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from robomimic_ddp.config import paths
from robomimic_ddp.distributed.watchdog import SAVING
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, UsageError
from robomimic_ddp.monitoring import heartbeat
from robomimic_ddp.terminal import say, table, width

SILENT_SECONDS, STUCK_SECONDS, STUCK_STEPS = 15.0, 30.0, 5
"""Without a heartbeat; at the same place while others are ahead, and in the time of its steps: the
longer of both.
"""
_TRAINS, _COLLECTIVES = " train, step", ("/autograd/", "/distributed/", "ddp/group.py")
_IN_TROUBLE, _MOST_TROUBLES = ("SILENT", "STUCK", "failed"), 4
_STYLES = {**dict.fromkeys(_IN_TROUBLE, "bold red"), "waits": "yellow", "finished": "green"}
_DAMAGED = "{}: damaged, so what its rank does is not known (a full disk?)"
COLUMNS = ("rank", "state", "epoch", "step", "s/step", "loss", "memory", "seen", "at")


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of `robomimic-ddp watch`."""
    parser.add_argument("run", metavar="RUN_DIR", help="folder of a run (with logs/ and models/)")
    parser.add_argument("--once", action="store_true", help="print the table once and end")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="between looks; default 2"
    )


def run(command: str, args: argparse.Namespace) -> int:
    """Shows the table until all ranks have ended (0), or until interrupted; with --once, returns 1
    if a rank is silent, stuck or failed. Raises DataError for a folder without heartbeats.
    """
    if not args.interval > 0:
        raise UsageError(f"--interval {args.interval:g}: expected more than 0 seconds.")
    directory = paths.expanded(args.run)
    beats, damaged = heartbeat.look(directory)
    if args.once or not sys.stdout.isatty():
        return _plainly(directory, args.interval, args.once)
    with Live(Screen(beats, damaged), refresh_per_second=4) as live:
        while not all(_end(one) for one in beats):
            time.sleep(args.interval)
            beats, damaged = heartbeat.look(directory)
            live.update(Screen(beats, damaged))
    return EXIT_DONE


def _plainly(directory: Path, interval: float, once: bool) -> int:
    while True:
        beats, damaged = heartbeat.look(directory)
        found = rows(beats, time.time())
        print("\n".join(table([COLUMNS, *found], width())), flush=True)
        states = [line[1] for line in found]
        for name in damaged:
            say(_DAMAGED.format(name))
        if once:
            return EXIT_REFUSED if damaged or set(_IN_TROUBLE) & set(states) else EXIT_DONE
        if all(_end(one) for one in beats):
            return EXIT_DONE
        time.sleep(interval)


def rows(beats: Sequence[dict[str, Any]], now: float) -> list[tuple[str, ...]]:
    """The table's cells, a tuple of COLUMNS for each rank."""
    farthest = max(_progress(one) for one in beats)
    awaited = any(_waits_for_others(one) for one in beats)
    return [_row(one, now, farthest, awaited) for one in beats]


def _end(one: dict[str, Any]) -> str | None:
    """How a rank has ended: "finished", "ended" on request, or "failed"; None while it runs."""
    return one.get("ended") or ("finished" if one["finished"] else None)


def _progress(one: dict[str, Any]) -> tuple[int, int]:
    """Epoch and started steps: a rank that loads its batch is behind those that have theirs."""
    return one["epoch"] or 0, max(one["step"], one.get("begun", 0))


def _waits_for_others(one: dict[str, Any]) -> bool:
    """Whether it waits in a training step, inside a collective or a backward pass."""
    code = one.get("code") or ""
    return _TRAINS in (one["place"] or "") and any(place in code for place in _COLLECTIVES)


def _row(
    one: dict[str, Any], now: float, farthest: tuple[int, int], awaited: bool
) -> tuple[str, ...]:
    seen = max(0.0, now - one["time"])
    loss, seconds = one["loss"], one["step_seconds"]
    return (
        f"{one['rank']}/{one['world_size']}",
        _state(one, seen, farthest, awaited),
        "-" if one["epoch"] is None else str(one["epoch"]),
        str(one["step"]),
        "-" if seconds is None else f"{seconds:.3f}",
        "-" if loss is None else f"{loss:.4g}",
        f"{one['memory'] / 2**20:.0f} MB",
        f"{seen:.0f} s ago",
        f"{one['place'] or '-'}{_in(one, seen)} ({one['host']}, pid {one['pid']}, {one['device']})",
    )


def _in(one: dict[str, Any], seen: float) -> str:
    """The current function of a rank that stands still."""
    stands = _stands_still(one, seen) and not _end(one)
    return f", in {one['code']}" if stands and one.get("code") else ""


def _stands_still(one: dict[str, Any], seen: float) -> bool:
    patience = max(STUCK_SECONDS, STUCK_STEPS * (one["step_seconds"] or 0.0))
    return one["idle_seconds"] + seen > patience


def _state(one: dict[str, Any], seen: float, farthest: tuple[int, int], awaited: bool) -> str:
    end = _end(one)
    if end is not None:
        return end
    if seen > SILENT_SECONDS:
        return "SILENT"
    if (one["place"] or "").startswith(SAVING):
        return "saves"
    if not _stands_still(one, seen):
        return "trains"
    keeps_waiting = awaited and _TRAINS in (one["place"] or "") and not _waits_for_others(one)
    return "STUCK" if _progress(one) < farthest or keeps_waiting else "waits"


@dataclass(frozen=True)
class Screen:
    """For rich: the table at any width; ranks in trouble come first, and are described above. Where
    a line is too long, "at" is below the others; if the ranks then leave the screen, it is cut.
    """

    beats: Sequence[dict[str, Any]]
    damaged: Sequence[str] = ()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Text]:
        found = sorted(rows(self.beats, time.time()), key=lambda line: line[1] not in _IN_TROUBLE)
        troubles = [_DAMAGED.format(name) for name in self.damaged]
        troubles += [
            f"rank {line[0]} {line[1]}: {line[-1]}" for line in found if line[1] in _IN_TROUBLE
        ]
        yield from (Text(line, style="bold red") for line in troubles[:_MOST_TROUBLES])
        lines = table([COLUMNS, *found], options.max_width)
        if "\n".join([*troubles[:_MOST_TROUBLES], *lines]).count("\n") >= console.height:
            lines = table([COLUMNS, *found], None)
        yield Text(lines[0], style="bold", no_wrap=True, overflow="ellipsis")
        for cells, line in zip(found, lines[1:]):
            style = _STYLES.get(cells[1], "")
            yield Text(line, style=style, no_wrap=True, overflow="ellipsis")
