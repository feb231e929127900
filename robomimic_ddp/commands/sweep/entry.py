"""A trial of a sweep: its folder, its run, and its lock.

A trial's log is its lock. A worker locks the file (`flock`) before it touches the trial, and the
training inherits the open file as its output, on every rank. So the lock is free as soon as, and
only when, neither the worker nor any process of the training is alive, however they ended.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.errors import DataError
from robomimic_ddp.monitoring import history

RECORD, REQUEUE, RUN_LOCK = "ddp.json", "requeue", "ddp.lock"
"""Names of checkpoint's files in a run directory, without importing torch."""
_GLANCE_SECONDS = 0.01


@dataclass(frozen=True)
class Entry:
    """One trial. id: Optuna's; state: Optuna's in lower case; value: its metric; digests: of the
    config files that its trainings were started with; worker: who started the last one.
    """

    directory: Path
    id: int
    number: int
    state: str
    values: Mapping[str, Any]
    name: str
    value: float | None = None
    error: str = ""
    digests: Sequence[str] = ()
    worker: Mapping[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.directory / "logs" / f"{self.number:03d}.txt"

    @property
    def folder(self) -> Path:
        return self.directory / "trials" / self.name

    def run(self) -> Path | None:
        """Return the newest run that the trial has made."""
        folders = self.folder.iterdir() if self.folder.is_dir() else ()
        runs = [folder for folder in folders if folder.is_dir()]
        return max(runs, key=lambda run: ((run / RECORD).exists(), run), default=None)

    @property
    def is_finished(self) -> bool:
        """Whether the last epoch of its run is done."""
        run = self.run()
        try:
            return run is not None and "outcome" in files.read_json(run / RECORD)
        except (OSError, ValueError):
            return False

    def lock(self) -> int | None:
        """Lock the log and return it as an open file, which keeps the lock until all copies of it
        are closed; None if another worker, or a training that outlived its worker, has it.
        """
        with files.opened_to_write(self.log) as file:
            descriptor = os.dup(file.fileno())
        try:
            if _try_lock(descriptor, fcntl.LOCK_EX):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    @property
    def is_held(self) -> bool:
        """Whether a worker looks after it, or its training runs."""
        return _is_locked(self.log)

    @property
    def is_trained_by_hand(self) -> bool:
        """Whether a training that no worker started is running in its run folder."""
        run = self.run()
        return run is not None and _is_locked(run / RUN_LOCK)

    def curve(self, metric: str) -> dict[int, float]:
        """Return epoch -> the metric, the mean over environments; NaN and infinity are left out.
        Raises DataError for a damaged history.
        """
        run = self.run()
        if run is None or not (run / history.FILE_NAME).is_file():
            return {}
        phase, key = metric.split("/")
        values: dict[int, list[float]] = {}
        for record in history.read(run):
            value = record["log"].get(key)
            if record["phase"] == phase and isinstance(value, (int, float)):
                values.setdefault(record["epoch"], []).append(value)
        means = {epoch: sum(of_epoch) / len(of_epoch) for epoch, of_epoch in values.items()}
        return {epoch: mean for epoch, mean in means.items() if math.isfinite(mean)}


def _try_lock(descriptor: int, kind: int) -> bool:
    for attempt in range(2):  # again after a moment: `sweep show` has it for an instant
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not attempt:
                time.sleep(_GLANCE_SECONDS)
        except OSError as error:
            raise DataError(
                f"the log of a trial cannot be locked: {error}. Workers of a sweep keep apart by "
                "locks; put its folder on a file system that has them."
            ) from error
    return False


def _is_locked(path: Path) -> bool:
    try:
        with files.opened(path) as file:
            return not _try_lock(file.fileno(), fcntl.LOCK_SH)
    except (OSError, DataError):  # nobody has made it, or the file system has no locks
        return False
