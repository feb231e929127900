"""`evaluation.jsonl` of a run: what `robomimic-ddp evaluate` has played.

A line of kind "episode" for each episode as soon as it has ended, and one of kind "result" for each
environment of a checkpoint, with the means over its episodes. `weights` is a digest of the
checkpoint's weights: one epoch may have several files, and files of one name other weights.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.monitoring.records import history

FILE_NAME = "evaluation.jsonl"
SUCCESS = "Success_Rate"
_NEEDED = {
    "episode": {"epoch", "weights", "env", "episode", "log"},
    "result": {"epoch", "weights", "env", "episodes", "checkpoint", "interval", "log"},
}


def append(directory: Path, record: dict) -> None:
    """Append one line; raise OSError, and leave the file as it was, if it cannot be written."""
    history.append(directory, record, FILE_NAME)


def read(directory: Path) -> list[dict[str, Any]]:
    """Return all records, oldest first; none where nothing was evaluated. Raises DataError for a
    damaged file.
    """
    path = directory / FILE_NAME
    return history.records_in(path, _record) if path.is_file() else []


def results(directory: Path) -> list[dict[str, Any]]:
    """Return the newest result of each environment of each checkpoint, by epoch."""
    newest = {
        (record["epoch"], record["weights"], record["env"]): record
        for record in read(directory)
        if record["kind"] == "result"
    }
    return sorted(newest.values(), key=lambda record: record["epoch"])


def drop_cut_line(directory: Path) -> None:
    """Remove a last line that a crash has cut off, so that the next one begins a line."""
    path = directory / FILE_NAME
    content = files.read_bytes(path, history.MOST_BYTES) if path.exists() else b""
    complete = content.rfind(b"\n") + 1
    if complete < len(content):
        os.truncate(path, complete)


def _record(value: Any) -> dict[str, Any]:
    needed = _NEEDED.get(value.get("kind")) if isinstance(value, dict) else None
    if needed is None or not isinstance(value.get("log"), dict):
        raise ValueError('expected an object with "kind" and "log"')
    missing = needed - set(value)
    if missing:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    return value
