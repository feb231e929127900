"""`robomimic-ddp watch RUN_DIR`: how far a run is, and a live table of its ranks."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from robomimic_ddp.config import env, machine, paths
from robomimic_ddp.distributed.watchdog import SAVING
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED
from robomimic_ddp.monitoring.records import heartbeat, run_summary
from robomimic_ddp.terminal import clean, print_clean, say, table, width, wrapped

_REFRESH_SECONDS = 2.0
STUCK_SECONDS, STUCK_STEPS = 30.0, 5
"""A rank is stuck after STUCK_SECONDS (or the time of STUCK_STEPS steps, if longer) at one place
while other ranks are ahead.
"""
_TRAINS, _COLLECTIVES = " train, step", ("/autograd/", "/distributed/", "ddp/group.py")
_IN_TROUBLE, _MOST_TROUBLES = ("GONE", "SILENT", "STUCK", "failed"), 4
_STYLES = {**dict.fromkeys(_IN_TROUBLE, "bold red"), "waits": "yellow", "finished": "green"}
_DAMAGED = "{}: this heartbeat is damaged, so the state of its rank is unknown (a full disk?)"
_CLOSE = "Ctrl-C closes this view; the run continues"
COLUMNS = ("rank", "state", "epoch", "step", "s/step", "loss", "memory", "seen", "at")


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp watch`."""
    parser.add_argument("run", metavar="RUN_DIR", help="run directory, with logs/ and models/")
    parser.add_argument("--once", action="store_true", help="print the table once and exit")


def run(command: str, args: argparse.Namespace) -> int:
    """Show the run until all ranks have ended or are gone (0), or until Ctrl-C; with --once, or
    elsewhere than in a terminal, print it and return 1 if a rank is gone, silent, stuck or failed.
    Raises UsageError where there is no folder, and DataError for one without heartbeats.
    """
    directory = paths.run_directory(args.run)
    if args.once or not sys.stdout.isatty():
        return _print_table(directory)
    with suppress(KeyboardInterrupt):
        _show_live(directory)
    _print_resume(directory, _screen(directory))
    return EXIT_DONE


def _show_live(directory: Path) -> None:
    screen = _screen(directory)
    live = Live(screen, refresh_per_second=4)
    try:
        live.start()  # not `with`: Ctrl-C may come while it starts
        while not screen.has_ended:
            time.sleep(_REFRESH_SECONDS)
            screen = _screen(directory)
            live.update(screen)
    finally:
        live.stop()


def _screen(directory: Path) -> Screen:
    beats, damaged = heartbeat.look(directory)
    return Screen(beats, damaged, list(run_summary.lines(directory, beats, time.time())))


def _print_resume(directory: Path, screen: Screen) -> None:
    """Print the command that resumes the run, on one line that a shell accepts."""
    resume = run_summary.resume_command(directory)
    if resume:
        when = "the run has ended;" if screen.has_ended else "if the run has ended,"
        print_clean(f"{when} resume it with:\n  {resume}")


def _print_table(directory: Path) -> int:
    screen = _screen(directory)
    cells = rows(screen.beats, time.time())
    for line in screen.summary:
        say(line)
    print_clean("\n".join(table([COLUMNS, *cells], width())))
    for name in screen.damaged:
        say(_DAMAGED.format(name))
    _print_resume(directory, screen)
    is_in_trouble = screen.damaged or any(state in _IN_TROUBLE for _, state, *_ in cells)
    return EXIT_REFUSED if is_in_trouble else EXIT_DONE


def rows(beats: Sequence[dict[str, Any]], now: float) -> list[tuple[str, ...]]:
    """Return a row of the table, with the cells of COLUMNS, for each rank."""
    farthest = max(_progress(beat) for beat in beats)
    awaited = any(_waits_for_others(beat) for beat in beats)
    return [_row(beat, now, farthest, awaited) for beat in beats]


def _outcome(beat: dict[str, Any]) -> str | None:
    """Return how a rank has ended: "finished", "ended" on request, "failed"; None while it runs."""
    return beat.get("ended") or ("finished" if beat["finished"] else None)


def _is_gone(beat: dict[str, Any], now: float) -> bool:
    """Return whether a rank was a process of this machine that no longer exists. One that gives
    heartbeats may be that of a container.
    """
    seconds = min(3 * heartbeat.interval(beat["world_size"]), run_summary.SILENT_SECONDS)
    is_quiet = now - beat["time"] > seconds
    return is_quiet and beat["host"] == env.host_name() and not machine.is_alive(beat["pid"])


def _progress(beat: dict[str, Any]) -> tuple[int, int]:
    """Return the epoch and the steps begun: a rank that still loads its batch is behind the ranks
    that have theirs.
    """
    return beat["epoch"] or 0, max(beat["step"], beat.get("begun") or 0)


def _waits_for_others(beat: dict[str, Any]) -> bool:
    """Return whether the rank is inside a collective or a backward pass of a training step."""
    code = beat.get("code") or ""
    return _TRAINS in (beat["place"] or "") and any(place in code for place in _COLLECTIVES)


def _row(
    beat: dict[str, Any], now: float, farthest: tuple[int, int], awaited: bool
) -> tuple[str, ...]:
    seen = max(0.0, now - beat["time"])
    loss, seconds = beat["loss"], beat["step_seconds"]
    process = f"({beat['host']}, pid {beat['pid']}, {beat['device']})"
    return (
        f"{beat['rank']}/{beat['world_size']}",
        _state(beat, now, farthest, awaited),
        "-" if beat["epoch"] is None else str(beat["epoch"]),
        str(beat["step"]),
        "-" if seconds is None else f"{seconds:.3f}",
        "-" if loss is None else f"{loss:.4g}",
        f"{beat['memory'] / 2**20:.0f} MB",
        f"{seen:.0f} s ago",
        f"{beat['place'] or '-'}{_current_function(beat, seen)} {process}",
    )


def _current_function(beat: dict[str, Any], seen: float) -> str:
    """Return ", in" and the current function of a rank that is not advancing, else ""."""
    is_stalled = _is_stalled(beat, seen) and not _outcome(beat)
    return f", in {beat['code']}" if is_stalled and beat.get("code") else ""


def _is_stalled(beat: dict[str, Any], seen: float) -> bool:
    patience = max(STUCK_SECONDS, STUCK_STEPS * (beat["step_seconds"] or 0.0))
    return beat["idle_seconds"] + seen > patience


def _state(beat: dict[str, Any], now: float, farthest: tuple[int, int], awaited: bool) -> str:
    outcome = _outcome(beat)
    if outcome is not None:
        return outcome
    if _is_gone(beat, now):
        return "GONE"
    if run_summary.is_silent(beat, now):
        return "SILENT"
    if (beat["place"] or "").startswith(SAVING):
        return "saves"
    if not _is_stalled(beat, max(0.0, now - beat["time"])):
        return "trains"
    keeps_waiting = awaited and _TRAINS in (beat["place"] or "") and not _waits_for_others(beat)
    return "STUCK" if _progress(beat) < farthest or keeps_waiting else "waits"


@dataclass(frozen=True)
class Screen:
    """Draws the summary and the table for rich, at any width. Ranks in trouble come first, and are
    described above the table. On a narrow screen the column "at" is below the others, unless the
    ranks would then not fit the screen's height: it is cut off in that case.
    """

    beats: Sequence[dict[str, Any]]
    damaged: Sequence[str] = ()
    summary: Sequence[str] = ()

    @property
    def has_ended(self) -> bool:
        now = time.time()
        return all(
            _outcome(beat) or _is_gone(beat, now) and run_summary.is_silent(beat, now)
            for beat in self.beats
        )

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Text]:
        columns = options.max_width
        cells = sorted(rows(self.beats, time.time()), key=lambda row: row[1] not in _IN_TROUBLE)
        troubles = [_DAMAGED.format(name) for name in self.damaged]
        troubles += [f"rank {row[0]} {row[1]}: {row[-1]}" for row in cells if row[1] in _IN_TROUBLE]
        del troubles[_MOST_TROUBLES:]
        lines = [*self.summary, *([] if self.has_ended else [_CLOSE])] if self.summary else []
        summary = [row for line in lines for row in wrapped(line, columns, "  ", "")]
        yield from map(Text, summary)
        yield from (Text(clean(line), style="bold red") for line in troubles)
        lines = table([COLUMNS, *cells], columns)
        if "\n".join([*summary, *troubles, *lines]).count("\n") >= console.height:
            lines = table([COLUMNS, *cells], None)
        yield Text(lines[0], style="bold", no_wrap=True, overflow="ellipsis")
        for (_, state, *_), line in zip(cells, lines[1:]):
            style = _STYLES.get(state, "")
            yield Text(line, style=style, no_wrap=True, overflow="ellipsis")
