"""Writes several files, all or none: each atomically, and back as it was if a later one fails."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robomimic_ddp.errors import PatchError


@dataclass(frozen=True)
class Change:
    """`after` becomes the contents of `path` (None: the file goes). `mode`: permission bits of a
    new file.
    """

    path: Path
    after: bytes | None
    mode: int | None = None


def write_all(changes: Sequence[Change]) -> None:
    """Makes all `changes` in order. Raises PatchError, with every file as it was, if one cannot be
    made.
    """
    for change in changes:
        _check_writable(change.path)
    undo: list[Change] = []
    try:
        for change in changes:
            undo.append(_snapshot(change.path))
            _put(change)
    except BaseException as error:  # an interrupt as well: half a retrofit would train wrongly
        for change in reversed(undo):
            _put(change)
        if isinstance(error, OSError):
            raise PatchError(
                f"{changes[len(undo) - 1].path} cannot be written: {error.strerror or error}. "
                "Every file is as it was."
            ) from error
        raise


def _check_writable(path: Path) -> None:
    if path.exists() and not path.stat().st_mode & stat.S_IWUSR:
        raise PatchError(
            f"{path} is read-only. Nothing was written. If it may be edited, make it writable "
            "(chmod u+w) and run again. To train without editing any file: "
            "torchrun ... -m robomimic_ddp run MODULE ARGUMENTS"
        )
    folder = path.parent
    if (
        not folder.is_dir()
        or not os.access(folder, os.W_OK)
        or not folder.stat().st_mode & stat.S_IWUSR
    ):
        raise PatchError(
            f"no file can be written in {folder}. Nothing was written; check its permissions, or "
            "train without editing any file: torchrun ... -m robomimic_ddp run MODULE ARGUMENTS"
        )


def _snapshot(path: Path) -> Change:
    if not path.exists():
        return Change(path, None)
    return Change(path, path.read_bytes(), stat.S_IMODE(path.stat().st_mode))


def _put(change: Change) -> None:
    """Makes one change through a temporary file beside its target: a crash leaves the old file or
    the new.
    """
    path = change.path.resolve()  # a link stays a link
    if change.after is None:
        path.unlink(missing_ok=True)
        return
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else change.mode
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(change.after)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644 if mode is None else mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
