"""`bench step --start-up`: how long the commands take, and what ours adds to a host's own start.

A start is the time from the start of a process until it could take its first step: imports, the
policy with its averaged copy and optimizer, a batch. Ours is that of several ranks on a host that
`apply` has edited, from the first process until the last rank is ready; each rank, and the unedited
host, is held to one core, so that ranks do not wait for each other's imports.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robomimic_ddp import env
from robomimic_ddp.bench.step_rows import interval
from robomimic_ddp.bench.team import HOST, OURS, Job, Team, Variant
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, ConfigError

QUICK, LONG = 2, 7
"""Rounds."""
PYTHON, HELP, DOCTOR = "python -c pass", "robomimic-ddp --help", "robomimic-ddp doctor"
HOSTS_OWN, ALL_OF_OURS = "the host's own start", "ours, all ranks ready"
ADDED, SEAMS = "ours over the host's own start", "plan, group and wrap (least waiting rank)"
TARGETS = {HELP: 0.2, DOCTOR: 3.0, ADDED: 1.0}
"""Seconds at most."""
_COMMANDS = {
    PYTHON: ["-c", "pass"],
    HELP: ["-m", "robomimic_ddp", "--help"],
    DOCTOR: ["-m", "robomimic_ddp", "doctor"],
}
_WARM_UP = 1


def measure(job: Job, rounds: int) -> dict[str, list[float]]:
    """Seconds of each part, round by round, after one that fills caches."""
    seconds: dict[str, list[float]] = {}
    cores = env.own_cores() if hasattr(os, "sched_setaffinity") else ()
    cores = cores if len(cores) >= job.ranks else None
    with edited_host() as folder:
        for number in range(_WARM_UP + rounds):
            found = {name: _timed_command(name) for name in _COMMANDS}
            for variant in random.Random(number).sample([HOST, OURS], 2):
                found.update(_timed_start(job, variant, cores, folder))
            found[ADDED] = found[ALL_OF_OURS] - found[HOSTS_OWN]
            if number >= _WARM_UP:
                for name, value in found.items():
                    seconds.setdefault(name, []).append(value)
    return seconds


def _timed_command(name: str) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *_COMMANDS[name]],
        env=env.child_environment([]),
        capture_output=True,
        text=True,
        check=False,
    )
    taken = time.perf_counter() - began
    if done.returncode not in (EXIT_DONE, EXIT_REFUSED):  # doctor's 1: it has found something
        raise ConfigError(f"{name} ended with exit code {done.returncode}: {done.stderr.strip()}")
    return taken


def _timed_start(job: Job, name: str, cores: Sequence[int] | None, folder: str) -> dict[str, float]:
    began = time.perf_counter()
    ours = name == OURS
    team = Team(job, Variant(name), cores, folder if ours else None)
    taken = time.perf_counter() - began
    seams = min(told["seams"] for told in team.told)
    team.close()
    return {ALL_OF_OURS: taken, SEAMS: seams} if ours else {HOSTS_OWN: taken}


@contextmanager
def edited_host() -> Iterator[str]:
    """The folder of a copy of the installed robomimic that `apply` has edited; removed at the end.

    Raises ConfigError where there is none, or `apply` fails.
    """
    found = importlib.util.find_spec("robomimic")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("robomimic is not installed here: there is no host to measure.")
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "robomimic"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(found.submodule_search_locations[0], package, ignore=ignored)
        words = [sys.executable, "-m", "robomimic_ddp", "apply", str(package)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != EXIT_DONE:
            raise ConfigError(f"the host could not be edited: {done.stderr.strip()}")
        yield folder


def rows(job: Job, seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row for each part."""
    found = []
    for name, values in seconds.items():
        low, high = interval(values)
        row = {"part": name, "seconds": statistics.median(values), "low": low, "high": high}
        row.update(rounds=len(values), target=TARGETS.get(name))
        row["world"] = job.ranks if name in (ALL_OF_OURS, ADDED, SEAMS) else 1
        found.append(row)
    return found


def lines(job: Job, found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines for the terminal."""
    width = max(len(row["part"]) for row in found)
    yield f"{'seconds (median)':{width}} {'':>7}   95 %              at most"
    for row in found:
        line = (
            f"{row['part']:{width}} {row['seconds']:7.3f}   {row['low']:.3f} to {row['high']:.3f}"
        )
        if row["target"] is not None:
            reached = "reached" if row["seconds"] <= row["target"] else "missed"
            line = f"{line:{width + 28}} {row['target']:g} ({reached})"
        yield line
    yield f"{found[0]['rounds']} rounds; ours with {job.ranks} ranks, on a host that was edited"
