"""`torch.save`, atomically: a crash while writing leaves the previous file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp.distributed import atomic_files, watchdog
from robomimic_ddp.errors import CheckpointError

_WRITER_TEXTS = ("PytorchStreamWriter", "inline_container", "unexpected pos", "iostream error")
"""Texts of torch's RuntimeError for a short write."""


class SaveError(CheckpointError):
    """A checkpoint could not be written."""


@watchdog.saving("a checkpoint")
def save(obj: Any, path: Any, follow: bool = True) -> None:
    """`torch.save`, atomically, with the same bytes: torch writes the file's name into the archive,
    so the temporary file has it, in a temporary folder. Raises CheckpointError, and keeps the old
    file, for a full disk, or a missing or read-only folder. A symbolic link is followed, or, for a
    file of ours (not `follow`), replaced.
    """
    target = Path(os.path.realpath(path) if follow else os.path.abspath(path))
    atomic_files.remove_left_over(target)
    temporary = atomic_files.temporary_beside(target)
    try:
        temporary.mkdir()
        torch.save(obj, temporary / target.name)
        with open(temporary / target.name, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary / target.name, target)
        atomic_files.flush_folder(target.parent)
    except OSError as error:
        raise save_error(target, error) from error
    except RuntimeError as error:
        if not any(text in str(error) for text in _WRITER_TEXTS):
            raise  # of the tensors, such as a CUDA error while they were copied
        raise save_error(target, _refused_write(temporary) or error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _refused_write(folder: Path) -> OSError | None:
    """Return the system's error for another write in `folder`, since torch gives no reason."""
    try:
        with open(folder / "another", "wb") as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


def save_error(path: Path, error: Exception) -> SaveError:
    """Return the error if the checkpoint `path` could not be written because of `error`."""
    return SaveError(f"checkpoint {atomic_files.not_saved(path, error)}")
