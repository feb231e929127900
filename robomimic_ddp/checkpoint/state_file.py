"""State files such as `ddp_state.pth`: written atomically, and never read when damaged.

A file contains {"format", "digest", "state"}; the digest covers every bit of the state. Read with
`weights_only=True`, which runs no code.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp import files
from robomimic_ddp.checkpoint import safe_load, torch_save
from robomimic_ddp.distributed import atomic_files, watchdog
from robomimic_ddp.errors import CheckpointError
from robomimic_ddp.monitoring.records.run_files import STATE
from robomimic_ddp.verify import digest

PREVIOUS, BEST = "ddp_state_previous.pth", "ddp_state_best.pth"
_DAMAGED = "ddp_state_damaged.pth"
FORMAT = 2
"""Incremented when another version would misread the file."""
PARTS = (
    "save_id",
    "epoch",
    "steps",
    "world_size",
    "samples_per_step",
    "learning_rates",
    "options",
    "best",
    "defines",
    "model",
    "ranks",
)
"""What every state has; the components
of `training/state/state_components.py` check what is theirs.
"""
_REMEDY = (
    "Resume with the version that wrote it, or begin a new run from the host's checkpoint "
    "(experiment.ckpt_path)."
)


class NotOurState(CheckpointError):
    """A complete file that this version cannot use: of another format, or with other contents."""


class UnreadableState(CheckpointError):
    """A file that cannot be read now, and may be complete."""


@watchdog.saving("the state")
def write(directory: Path, state: dict[str, Any], best: bool) -> list[str]:
    """Main rank: writes `state` as the newest file, complete at every instant, and keeps the one
    before; `best`: also as the best. Returns a line for each older copy that could not be replaced.
    Raises CheckpointError, and leaves the files unchanged, if the newest cannot be written.
    """
    sealed = {"format": FORMAT, "digest": digest(state), "state": state}
    newest = directory / STATE
    older = _second_name(newest, directory / PREVIOUS) if newest.exists() else None
    try:
        torch_save.save(sealed, newest, follow=False)
    except BaseException:
        if older is not None:
            with suppress(OSError):
                older.unlink()
        raise
    troubles = []
    for name in [PREVIOUS] * (older is not None) + [BEST] * best:
        second = older if name == PREVIOUS else None
        try:
            second = second or _second_name(newest, directory / name)
            os.replace(second, directory / name)
        except (CheckpointError, OSError) as error:
            troubles.append(f"{newest} was saved, but {name} was not updated: {error}")
            if second is not None:
                with suppress(OSError):
                    second.unlink()
    return troubles


def _second_name(path: Path, final: Path) -> Path:
    """Return a hard link to (else a copy of) the file at `path`, under a temporary name in the
    folder of `final`.
    """
    atomic_files.remove_left_over(final)
    temporary = atomic_files.temporary_beside(final)
    try:
        # A link to a symbolic link would refer to the next file.
        os.link(os.path.realpath(path), temporary)
    except OSError:  # a file system without links, or a full one, where the copy raises
        try:
            shutil.copyfile(path, temporary)
        except OSError as error:
            raise torch_save.save_error(final, error) from error
    return temporary


def exists(directory: Path) -> bool:
    """Return whether the directory has a state of ours, readable or not. A broken symbolic link
    counts: the state may be on a disk that is not mounted.
    """
    return any(os.path.lexists(directory / name) for name in (STATE, PREVIOUS))


def read(directory: Path) -> tuple[dict[str, Any], list[str]]:
    """Main rank: return the newest undamaged state, and notes on skipped files. Renames a damaged
    newest file, so that it never becomes the previous one. Raises CheckpointError if none can be
    used, NotOurState if another version wrote it, UnreadableState if it may be undamaged.
    """
    notes = []
    for name in (STATE, PREVIOUS):
        path = directory / name
        if not os.path.lexists(path):
            notes.append(f"{path} does not exist.")
            continue
        try:
            state = read_file(path)
            require_complete(state, path)
        except (NotOurState, UnreadableState):
            raise
        except CheckpointError as error:
            notes.append(str(error))
            continue
        if notes:
            notes.append(f"using {path} of epoch {state['epoch']}")
            with suppress(OSError):
                os.replace(directory / STATE, directory / _DAMAGED)
                notes.append(f"the damaged file is kept as {_DAMAGED}")
        return state, notes
    reasons = " ".join(notes) if exists(directory) else f"neither {STATE} nor {PREVIOUS} exists."
    raise CheckpointError(
        f"{directory} has no state to resume from: {reasons} Resume another run, or "
        "start a new one (the host's own checkpoints can start it: experiment.ckpt_path)."
    )


def read_file(path: Path) -> dict[str, Any]:
    """Return the state in the file. Raises CheckpointError if damaged, NotOurState if of another
    format, UnreadableState if it cannot be read.
    """
    try:
        file = files.regular(os.path.realpath(path))
        sealed = torch.load(file, map_location="cpu", weights_only=True)
        version, expected, state = sealed["format"], sealed["digest"], sealed["state"]
    except Exception as error:  # of damaged bytes: any, and EINVAL where they were cut off
        lacks_memory = isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
        if lacks_memory or getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise UnreadableState(
                f"{path} cannot be read ({safe_load.reason(error)}). It may be complete, and an "
                "older state would lose what was trained since. See that it can be read, then "
                "resume again; move it away to resume from an older one."
            ) from error
        cut = path.is_file() and not safe_load.is_archive(path)
        size = path.stat().st_size if cut else 0
        why = f"cut off while it was written, at {size} bytes" if cut else safe_load.reason(error)
        raise CheckpointError(f"{path} is damaged and cannot be used ({why}).") from error
    if version != FORMAT:
        raise NotOurState(
            f"{path} has format {version}; this version of robomimic-ddp reads {FORMAT}. {_REMEDY} "
            "An older state would lose what was trained since."
        )
    if digest(state) != expected:
        raise CheckpointError(f"{path} is damaged and cannot be used (its checksum is wrong).")
    return state


def require_complete(state: Any, path: Path) -> None:
    """Raise NotOurState if `state`, read from `path`, lacks one of PARTS."""
    lacking = [name for name in PARTS if not isinstance(state, dict) or name not in state]
    if lacking:
        raise NotOurState(
            f"the state in {path} is complete but was written by another version of robomimic-ddp: "
            f"it lacks {', '.join(lacking)}. {_REMEDY}"
        )


@contextmanager
def restoring(part: str, path: Path) -> Iterator[None]:
    """For the block, which restores a part of the state in `path`: raise NotOurState, naming both,
    where the part does not fit its component.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NotOurState(
            f"the state in {path} is complete, but its part {part!r} does not fit this version of "
            f"robomimic-ddp ({type(error).__name__}: {error}). {_REMEDY}"
        ) from error
