"""A lock, so that one job at a time trains in a run directory.

The operating system releases the lock when its process ends, and shared file systems pass it to
other nodes. If they do not, the run's heartbeat shows that it is alive.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO, Any

from robomimic_ddp import files
from robomimic_ddp.config import env
from robomimic_ddp.distributed import atomic_files
from robomimic_ddp.errors import CheckpointError, DataError
from robomimic_ddp.monitoring.records import heartbeat
from robomimic_ddp.monitoring.records.run_files import LOCK
from robomimic_ddp.terminal import warn

_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0
"""How long to wait for the lock without a heartbeat of its owner."""
_STALE_SECONDS = 600.0
"""Older heartbeats of another node are ignored: clocks of nodes differ by less."""
_SILENT_BEATS = 3


class DirectoryInUse(CheckpointError):
    """Another job trains in the run directory."""


def take(directory: Path) -> IO[bytes]:
    """Main rank: lock `directory` until the returned file is closed, or this process ends.

    Raises DirectoryInUse if another job that is alive has it.
    """
    with atomic_files.must_be_written(directory / LOCK):
        lock = files.opened_to_write(directory / LOCK)
    # A data worker may outlive its rank.
    os.register_at_fork(after_in_child=lock.close)
    try:
        _wait_until_free(lock, directory)
    except BaseException:
        lock.close()
        raise
    return lock


def _wait_until_free(lock: IO[bytes], directory: Path) -> None:
    """Return once the lock is ours and no other node shows that it is alive."""
    started, first, is_ours, has_locks = time.monotonic(), _beat(directory), False, True
    silence = _silence_needed(first, has_locks)
    while True:
        try:
            is_ours = is_ours or files.try_lock(lock)
        except OSError as error:
            warn(f"{directory} cannot be locked: {error}")
            is_ours, has_locks = True, False
            silence = _silence_needed(first, has_locks)
        if is_ours and not silence:
            return
        beat = _beat(directory)
        if first and beat and beat["time"] != first["time"] and not beat.get("finished"):
            raise _in_use(directory, beat)
        if time.monotonic() - started >= (silence if is_ours else _PATIENCE_SECONDS):
            if is_ours:
                return
            raise _in_use(directory, beat)
        first = first or beat
        time.sleep(_LOOK_SECONDS)


def _beat(directory: Path) -> dict[str, Any] | None:
    """Return the main rank's heartbeat, if there is one."""
    try:
        return heartbeat.read(directory)[0]
    except DataError:
        return None


def _silence_needed(beat: dict[str, Any] | None, has_locks: bool) -> float:
    """Return the seconds of silence after which a run whose lock we have is dead; 0 if it was on
    this node, whose locks are certain where the file system has any.
    """
    if beat is None or beat.get("finished"):
        return 0.0
    if has_locks and beat.get("host") == env.host_name():
        return 0.0
    if time.time() - beat["time"] > _STALE_SECONDS:
        return 0.0
    return _SILENT_BEATS * heartbeat.interval(beat.get("world_size") or 1)


def _in_use(directory: Path, beat: dict[str, Any] | None) -> DirectoryInUse:
    owner = "another process, which has written no heartbeat there"
    if beat is not None:
        age = max(0.0, time.time() - beat["time"])
        owner = f"process {beat.get('pid')} on {beat.get('host')}, "
        owner += f"whose last heartbeat is {age:.0f} s old"
    return DirectoryInUse(
        f"{directory} is in use by {owner}. Two jobs in one run directory would overwrite each "
        "other's states. Wait for that job to end, or stop it (robomimic-ddp watch shows it), "
        "then resume; or start a new run, without resume."
    )
