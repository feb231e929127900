"""`bench step --start-up`: how long the commands take, and what ours adds to a host's own start.

A start is the time from the start of a process until it could take its first step: imports, the
policy with its averaged copy and optimizer, a batch. Ours is that of several ranks on a host that
`apply` has edited, from the first process until the last rank is ready. Beside it as many unedited
hosts start at once, which know nothing of each other: imports of several processes slow one another
down (cores that share a core's units, one disk), whoever starts them. Each is held to one core.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robomimic_ddp import env
from robomimic_ddp.bench import launched
from robomimic_ddp.bench.step_rows import interval
from robomimic_ddp.bench.team import HOST, OURS, Job, Team, Variant
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, ConfigError

QUICK, LONG = 2, 7
"""Rounds."""
PYTHON, HELP, DOCTOR = "python -c pass", "robomimic-ddp --help", "robomimic-ddp doctor"
HOSTS_OWN, ALL_OF_OURS = "as many hosts of their own, all ready", "ours, all ranks ready"
ADDED, SEAMS = "ours over the hosts' own start", "plan, group and wrap (least waiting rank)"
TARGETS = {HELP: 0.2, DOCTOR: 3.0, ADDED: 1.0}
"""Seconds at most."""
_COMMANDS = {
    PYTHON: ["-c", "pass"],
    HELP: ["-m", "robomimic_ddp", "--help"],
    DOCTOR: ["-m", "robomimic_ddp", "doctor"],
}
_WARM_UP = 1


Seconds = tuple[float, float]
"""By the clock, and of the processor (the mean over ranks)."""


def measure(job: Job, rounds: int) -> dict[str, list[Seconds]]:
    """Seconds of each part, round by round, after one that fills caches."""
    seconds: dict[str, list[Seconds]] = {}
    cores = env.own_cores() if hasattr(os, "sched_setaffinity") else ()
    cores = cores if len(cores) >= job.ranks else None
    with edited_host() as folder:
        for number in range(_WARM_UP + rounds):
            found = {name: _timed_command(name) for name in _COMMANDS}
            for variant in random.Random(number).sample([HOST, OURS], 2):
                found.update(_timed_start(job, variant, cores, folder))
            pairs = zip(found[ALL_OF_OURS], found[HOSTS_OWN])
            found[ADDED] = tuple(ours - hosts for ours, hosts in pairs)
            if number >= _WARM_UP:
                for name, value in found.items():
                    seconds.setdefault(name, []).append(value)
    return seconds


def _timed_command(name: str) -> Seconds:
    began, before = time.perf_counter(), _of_children()
    done = subprocess.run(
        [sys.executable, *_COMMANDS[name]],
        env={**env.child_environment([]), **launched.KEEPS_BYTECODE},
        capture_output=True,
        text=True,
        check=False,
    )
    taken = time.perf_counter() - began, _of_children() - before
    if done.returncode not in (EXIT_DONE, EXIT_REFUSED):  # doctor's 1: it has found something
        raise ConfigError(f"{name} ended with exit code {done.returncode}: {done.stderr.strip()}")
    return taken


def _timed_start(
    job: Job, name: str, cores: Sequence[int] | None, folder: str
) -> dict[str, Seconds]:
    began, before, ours = time.perf_counter(), _of_children(), name == OURS
    with ThreadPoolExecutor(job.ranks) as starting:
        if ours:
            places = [cores]
        else:
            places = [cores and cores[place : place + 1] for place in range(job.ranks)]
        host = folder if ours else None
        teams = list(starting.map(lambda place: Team(job, Variant(name), place, host), places))
    taken = time.perf_counter() - began
    told = [one for team in teams for one in team.told]
    seams = tuple(min(one[key] for one in told) for key in ("seams", "seams_cpu"))
    for team in teams:
        team.close()
    cpu = (_of_children() - before) / job.ranks
    return {ALL_OF_OURS: (taken, cpu), SEAMS: seams} if ours else {HOSTS_OWN: (taken, cpu)}


def _of_children() -> float:
    """Seconds of the processor that processes have taken which this one has started and ended."""
    times = os.times()
    return times.children_user + times.children_system


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


def rows(job: Job, seconds: dict[str, list[Seconds]]) -> list[dict[str, Any]]:
    """One row for each part."""
    found = []
    for name, values in seconds.items():
        walls, cpus = zip(*values)
        low, high = interval(walls)
        row = {"part": name, "seconds": statistics.median(walls), "low": low, "high": high}
        row.update(cpu_seconds=statistics.median(cpus), rounds=len(walls))
        row["target"] = TARGETS.get(name)
        row["world"] = job.ranks if name in (ALL_OF_OURS, ADDED, SEAMS) else 1
        found.append(row)
    return found


def lines(job: Job, found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines for the terminal."""
    width = max(len(row["part"]) for row in found)
    yield f"{'medians of seconds':{width}} {'clock':>7}  {'95 %':16} {'CPU':>7}   at most"
    for row in found:
        ends = f"{row['low']:.2f} to {row['high']:.2f}"
        line = f"{row['part']:{width}} {row['seconds']:7.2f}  {ends:16} {row['cpu_seconds']:7.2f}"
        if row["target"] is not None:
            reached = "reached" if row["seconds"] <= row["target"] else "missed"
            line += f"   {row['target']:g} s by the clock ({reached})"
        yield line
    yield (
        f"{found[0]['rounds']} rounds; ours with {job.ranks} ranks, on a host that was edited; "
        "CPU: processor time of a rank"
    )
