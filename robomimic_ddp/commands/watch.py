"""`robomimic-ddp watch RUN_DIR`: how far a run is, and a live table of its ranks."""

from __future__ import annotations

import argparse
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from robomimic_ddp.config import paths
from robomimic_ddp.distributed.watchdog import SAVING
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED
from robomimic_ddp.monitoring import heartbeat, run_summary
from robomimic_ddp.terminal import clean, print_clean, say, table, width, wrapped

_SECONDS = 2.0
"""Between looks."""
SILENT_SECONDS, STUCK_SECONDS, STUCK_STEPS = 15.0, 30.0, 5
"""Without a heartbeat; at the same place while others are ahead, and in the time of its steps: the
longer of both.
"""
_TRAINS, _COLLECTIVES = " train, step", ("/autograd/", "/distributed/", "ddp/group.py")
_IN_TROUBLE, _MOST_TROUBLES = ("SILENT", "STUCK", "failed"), 4
_STYLES = {**dict.fromkeys(_IN_TROUBLE, "bold red"), "waits": "yellow", "finished": "green"}
_DAMAGED = "{}: damaged, so what its rank does is not known (a full disk?)"
_KEYS = "q or Ctrl-C ends this view, not the run"
COLUMNS = ("rank", "state", "epoch", "step", "s/step", "loss", "memory", "seen", "at")


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments of `robomimic-ddp watch`."""
    parser.add_argument("run", metavar="RUN_DIR", help="folder of a run (with logs/ and models/)")
    parser.add_argument("--once", action="store_true", help="print the table once and end")


def run(command: str, args: argparse.Namespace) -> int:
    """Show the run until all ranks have ended (0), or until q or Ctrl-C; with --once, return 1 if a
    rank is silent, stuck or failed. Raises DataError for a folder without heartbeats.
    """
    directory = paths.expanded(args.run)
    heartbeat.look(directory)
    if args.once or not sys.stdout.isatty():
        return _print_tables(directory, args.once)
    with suppress(KeyboardInterrupt):
        _show_live(directory)
    _print_resume(directory)
    return EXIT_DONE


def _show_live(directory: Path) -> None:
    beats, damaged = heartbeat.look(directory)
    screen = Screen(beats, damaged, _summary(directory, beats))
    live = Live(screen, refresh_per_second=4)
    with _keyboard() as is_quit:
        try:
            live.start()  # not `with`: Ctrl-C may come while it starts
            while not all(_outcome(beat) for beat in beats) and not is_quit():
                beats, damaged = heartbeat.look(directory)
                live.update(Screen(beats, damaged, _summary(directory, beats)))
        finally:
            live.stop()


def _summary(directory: Path, beats: Sequence[dict[str, Any]]) -> list[str]:
    return list(run_summary.lines(directory, beats, time.time()))


def _print_resume(directory: Path) -> None:
    """Print the command that resumes the run, on one line, as a shell takes it."""
    resume = run_summary.resume_command(directory)
    if resume:
        print_clean(f"if the run has ended, resume it with:\n  {resume}")


@contextmanager
def _keyboard() -> Iterator[Callable[[], bool]]:
    """Yield a function that waits until the next look, or a key, and returns whether it was q."""
    if not sys.stdin.isatty():
        yield lambda: bool(time.sleep(_SECONDS))
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)  # keys come without Enter

    def is_quit() -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], _SECONDS)
        return bool(ready) and os.read(sys.stdin.fileno(), 1).lower() in (b"q", b"")

    try:
        yield is_quit
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _print_tables(directory: Path, once: bool) -> int:
    while True:
        beats, damaged = heartbeat.look(directory)
        cells = rows(beats, time.time())
        for line in _summary(directory, beats):
            say(line)
        print_clean("\n".join(table([COLUMNS, *cells], width())))
        states = [line[1] for line in cells]
        for name in damaged:
            say(_DAMAGED.format(name))
        has_ended = all(_outcome(beat) for beat in beats)
        if once or has_ended:
            _print_resume(directory)
        if once:
            return EXIT_REFUSED if damaged or set(_IN_TROUBLE) & set(states) else EXIT_DONE
        if has_ended:
            return EXIT_DONE
        time.sleep(_SECONDS)


def rows(beats: Sequence[dict[str, Any]], now: float) -> list[tuple[str, ...]]:
    """Return the table's cells, a tuple of COLUMNS for each rank."""
    farthest = max(_progress(beat) for beat in beats)
    awaited = any(_waits_for_others(beat) for beat in beats)
    return [_row(beat, now, farthest, awaited) for beat in beats]


def _outcome(beat: dict[str, Any]) -> str | None:
    """Return how a rank has ended: "finished", "ended" on request, "failed"; None while it runs."""
    return beat.get("ended") or ("finished" if beat["finished"] else None)


def _progress(beat: dict[str, Any]) -> tuple[int, int]:
    """Return its epoch and started steps: who loads its batch is behind those that have theirs."""
    return beat["epoch"] or 0, max(beat["step"], beat.get("begun", 0))


def _waits_for_others(beat: dict[str, Any]) -> bool:
    """Whether it waits in a training step, inside a collective or a backward pass."""
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
        _state(beat, seen, farthest, awaited),
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


def _state(beat: dict[str, Any], seen: float, farthest: tuple[int, int], awaited: bool) -> str:
    outcome = _outcome(beat)
    if outcome is not None:
        return outcome
    if seen > SILENT_SECONDS:
        return "SILENT"
    if (beat["place"] or "").startswith(SAVING):
        return "saves"
    if not _is_stalled(beat, seen):
        return "trains"
    keeps_waiting = awaited and _TRAINS in (beat["place"] or "") and not _waits_for_others(beat)
    return "STUCK" if _progress(beat) < farthest or keeps_waiting else "waits"


@dataclass(frozen=True)
class Screen:
    """Draws the summary and the table at any width, for rich. Ranks in trouble come first, and are
    described above. Where a line is too long, "at" is below the others; if the ranks then leave the
    screen, it is cut.
    """

    beats: Sequence[dict[str, Any]]
    damaged: Sequence[str] = ()
    summary: Sequence[str] = ()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Text]:
        cells = sorted(rows(self.beats, time.time()), key=lambda line: line[1] not in _IN_TROUBLE)
        troubles = [_DAMAGED.format(name) for name in self.damaged]
        troubles += [
            f"rank {line[0]} {line[1]}: {line[-1]}" for line in cells if line[1] in _IN_TROUBLE
        ]
        summary = [*self.summary, _KEYS] if self.summary else []
        summary = [
            row for line in summary for row in wrapped(clean(line), options.max_width, "  ", "")
        ]
        yield from map(Text, summary)
        yield from (Text(clean(line), style="bold red") for line in troubles[:_MOST_TROUBLES])
        lines = table([COLUMNS, *cells], options.max_width)
        above = [*summary, *troubles[:_MOST_TROUBLES]]
        if "\n".join([*above, *lines]).count("\n") >= console.height:
            lines = table([COLUMNS, *cells], None)
        yield Text(lines[0], style="bold", no_wrap=True, overflow="ellipsis")
        for (_, state, *_), line in zip(cells, lines[1:]):
            style = _STYLES.get(state, "")
            yield Text(line, style=style, no_wrap=True, overflow="ellipsis")


def _fitted(text: str, columns: int) -> list[str]:
    return wrapped(clean(text), columns, "  ", first="")
