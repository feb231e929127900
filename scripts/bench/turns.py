"""Processes that take turns in rounds, and ratios within rounds: other load on the machine then
slows all of them alike.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.config import paths
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, ConfigError, RobomimicDDPError
from robomimic_ddp.terminal import say, whole_number

_RESAMPLES = 2000
Table = tuple[list[dict[str, Any]], Iterable[str]]
"""The rows of a measurement for --json, and its lines for the terminal."""


def take_turns(keys: Iterable[Any], rounds: int, measure: Callable[[Any], Any]) -> dict[Any, list]:
    """Return `rounds` results of `measure` for each key. A round measures each key once, in a
    random order.
    """
    results: dict[Any, list] = {key: [] for key in keys}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for key in random.Random(number).sample(list(results), len(results)):
            results[key].append(measure(key))
    return results


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the median over rounds of above / below, and its 95 % bootstrap interval (fixed
    seed).
    """
    values = [numerator / denominator for numerator, denominator in zip(above, below)]
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES)
    )
    low, high = medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]
    return {"median": statistics.median(values), "low": low, "high": high}


def shown(interval: dict[str, float]) -> str:
    """Format a ratio for the terminal."""
    return f"{interval['median']:.3g} ({interval['low']:.3g} to {interval['high']:.3g})"


def _writable(text: str) -> Path:
    reason = paths.why_not_writable(paths.expanded(text).parent)
    if reason is not None:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written to: {reason}")
    return paths.expanded(text)


def parser(description: str, rounds: int, quick_rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all measurements share."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--quick", action="store_true", help="a first look: fewer and shorter rounds")
    add("--rounds", type=whole_number(1), help=f"default {rounds}, with --quick {quick_rounds}")
    add("--json", type=_writable, metavar="FILE", help="also write the rows as JSON")
    return parser


def report(tables: Iterator[Table], file: Path | None) -> int:
    """Print tables as they are measured, write all rows to `file` after each, and return the exit
    code.
    """
    rows: list[dict[str, Any]] = []
    try:
        for measured, lines in tables:
            for line in lines:
                say(line)
            rows += measured
            if file is not None:
                _write(file, rows)
    except RobomimicDDPError as error:
        say(f"bench: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return EXIT_DONE


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {file} cannot be written: {error}.") from error
