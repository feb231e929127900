"""`ddp.json` and the requeue marker of a run: what it is, how it ended, how to resume."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.checkpoint import state_file
from robomimic_ddp.distributed import atomic_files
from robomimic_ddp.monitoring.records.run_files import RECORD, REQUEUE
from robomimic_ddp.terminal import warn


class RunRecord:
    """The main rank's `ddp.json` in `directory`: options, plan, newest state and outcome of a run.
    `content` is for JSON.
    """

    def __init__(self, directory: Path, content: dict[str, Any]) -> None:
        self.directory, self.content = directory, content
        self._warned = False

    def write(self) -> None:
        """Replace the file. Raises OSError."""
        with atomic_files.atomic_open(self.directory / RECORD) as file:
            file.write(json.dumps(self.content, indent=2) + "\n")

    def add(self, **items: Any) -> None:
        """Add `items` and replace the file; warn once if that fails."""
        self.content.update(items)
        try:
            self.write()
        except OSError as error:
            if not self._warned:
                warn(f"{RECORD} could not be written: {error}")
            self._warned = True


def write_requeue(directory: Path, content: dict) -> None:
    """Main rank: writes the marker for a script to start the job again. Raises OSError."""
    with atomic_files.atomic_open(directory / REQUEUE) as file:
        file.write(json.dumps(content) + "\n")


def relative_paths(directory: Path, paths: Any) -> list:
    """Return the host's paths, relative to the run directory, for `ddp.json`."""
    return [None if path is None else os.path.relpath(path, directory) for path in paths]


def paths_in(directory: Path, record: dict) -> tuple:
    """Return the host's paths that `record`, the `ddp.json` of `directory`, names."""
    return tuple(
        None if path is None else os.path.normpath(directory / path)
        for path in record.get("paths", ())
    )


def read_record(directory: Path) -> dict | None:
    """Return the `ddp.json` of a run directory, or None. Warns if it is unreadable where there is a
    state.
    """
    path = directory / RECORD
    try:
        record = files.read_json(path)
        names = record.get("paths") if isinstance(record, dict) else None
        is_list = isinstance(names, list) and all(isinstance(name, str | None) for name in names)
        fault = None if is_list and any(names) else "it names no paths"
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or str(error)
    if fault is None:
        return record
    if state_file.exists(directory):
        warn(
            f"{path} cannot be used ({fault}): a restart by torchrun does not find this run and "
            "begins a new one. ddp.resume=true finds it while it is the newest, and takes its "
            "paths from the host."
        )
    return None
