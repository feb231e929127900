"""Optuna's journal, which keeps the trials of a sweep in one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from robomimic_ddp.errors import DataError


def load_optuna() -> Any:
    """Return Optuna, which logs warnings only. Raises DataError if it is missing or too old."""
    try:
        import optuna

        if tuple(map(int, optuna.__version__.split(".")[:2])) < (4, 3):
            raise ImportError(f"{optuna.__version__} never releases a killed worker's lock")
    except ImportError as error:
        raise DataError(
            f"sweeps need Optuna 4.3 or later: {error}. Install the extra: "
            'pip install ".[sweep]" in robomimic-ddp\'s checkout.'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def storage(journal: Path) -> Any:
    """Return Optuna's storage in the file `journal`, for any number of processes."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    class RepairingLock(JournalFileSymlinkLock):
        """Removes the half line of a writer that was killed before the next line is appended."""

        def acquire(self) -> bool:
            super().acquire()
            try:
                _remove_half_line(journal)
            except BaseException:
                self.release()
                raise
            return True

    return JournalStorage(JournalFileBackend(str(journal), lock_obj=RepairingLock(str(journal))))


def _remove_half_line(journal: Path) -> None:
    with open(journal, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) in (b"\n", b""):
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
