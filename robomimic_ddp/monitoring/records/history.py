"""`history.jsonl` of a run: a line for each call of the host's `run_epoch`, and for the rollouts of
each environment, written by the main rank.

A line has epoch, phase ("train", "valid" or "rollout") and the host's log; training and validation
also have steps, samples, seconds and samples_per_second (over all ranks; 0 for validation, where
ranks may have unequal shares), rollouts the environment's name as env. In a resumed epoch, steps
and samples are those of the whole epoch, seconds and samples_per_second those of this job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import paths
from robomimic_ddp.errors import DataError
from robomimic_ddp.terminal import warn

FILE_NAME = "history.jsonl"
MOST_BYTES = 256 * 2**20


def append_rollouts(folder: Path, epoch: Any, result: Any) -> None:
    """Append each environment's statistics, with phase "rollout" and its name as "env".

    result: the host's, a dict by environment or a tuple that starts with one.
    """
    statistics = result[0] if isinstance(result, tuple) else result
    for name, log in statistics.items() if isinstance(statistics, dict) else ():
        if isinstance(log, dict):
            record = {"epoch": epoch, "phase": "rollout", "env": name, "log": dict(log)}
            try_to_append(folder, record)


_warned: set[Path] = set()


def try_to_append(folder: Path, record: dict) -> None:
    """Append a record; warn, once in a run, if that fails, as on a full disk, or for a log with
    keys that JSON has not.
    """
    try:
        append(folder, record)
    except (OSError, TypeError, ValueError) as error:
        if folder not in _warned:
            warn(f"{FILE_NAME} lacks an epoch's log: {error}")
        _warned.add(folder)


def append(directory: Path, record: dict, name: str = FILE_NAME) -> None:
    """Appends one line. If it cannot be written, raises OSError and leaves the file unchanged."""
    line = json.dumps(record, sort_keys=True, default=_plain) + "\n"
    with files.opened_to_write(directory / name, buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        data = line.encode()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def _plain(value: Any) -> Any:
    """For JSON: numbers of numpy and torch as numbers, other types as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def read(directory: Path) -> list:
    """Return the records of a run, oldest first, without a last line that a crash cut off.

    Raises DataError if there is no history or another line is damaged.
    """
    path = Path(directory) / FILE_NAME
    if not os.path.lexists(path):
        other = paths.example_below(Path(directory), FILE_NAME)
        raise DataError(
            f"{directory} has no {FILE_NAME}; expected the folder of a run trained under the "
            f"retrofit (the one with logs/ and models/){other}."
        )
    return records_in(path, _record)


def records_in(path: Path, check: Callable[[Any], dict]) -> list:
    """Return what `check` returns for the value in each line of a file, without a last line that a
    crash cut off. Raises DataError if the file cannot be read, or `check` refuses another line.
    """
    records = []
    try:
        lines = files.read_text(path, MOST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as UTF-8 text ({error}): it is damaged, or of another program. "
            "Copy it again from where the run was trained."
        ) from error
    for number, line in enumerate(lines, start=1):
        try:
            records.append(check(files.parse_json(line)))
        except ValueError as error:
            if number == len(lines):
                break
            raise DataError(
                f"{path}, line {number}, is not a record that robomimic-ddp writes ({error}); "
                "remove the line to read the rest."
            ) from error
    return records


def _record(record: Any) -> dict:
    """`record`, if it is a line of a history; else raises ValueError."""
    if not isinstance(record, dict) or not isinstance(record.get("log"), dict):
        raise ValueError('expected an object with "epoch", "phase" and "log"')
    missing = {"epoch", "phase"} - set(record)
    if missing:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    return record
