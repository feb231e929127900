"""A lock, so that one job at a time trains in a run directory.

The operating system releases the lock when its process ends, and shared file systems pass it to
other nodes. If they do not, the run's heartbeat shows that it is alive.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import filelock

from robomimic_ddp.config import env
from robomimic_ddp.errors import CheckpointError, DataError
from robomimic_ddp.monitoring import heartbeat

NAME = "ddp.lock"
_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0
"""How long to wait for the lock without a heartbeat of its owner."""
_STALE_SECONDS = 600.0
"""Older heartbeats of another node are ignored: clocks of nodes differ by less."""
_SILENT_BEATS = 3
_taken: list[tuple[int, os.stat_result]] = []
"""Descriptors of this process's locks."""


def _leave_to_parent() -> None:
    """Closes the locks in a forked child, which may outlive us; new filelocks do so too."""
    while _taken:
        descriptor, file = _taken.pop()
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), file):
                os.close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


class DirectoryInUse(CheckpointError):
    """Another job trains in the run directory."""


def take(directory: Path) -> filelock.BaseFileLock:
    """Main rank: locks `directory` until the returned lock is released, or this process ends.
    Raises DirectoryInUse if another job that is alive has it.
    """
    lock, begun = filelock.FileLock(str(directory / NAME)), time.monotonic()
    first = _beat(directory)
    silence, is_shown = _silence_needed(first), False
    while True:
        refused = False
        try:
            if not lock.is_locked:
                lock.acquire(timeout=0)
                _note_taken(directory / NAME)
        except filelock.Timeout:
            refused = True
        except (OSError, NotImplementedError) as error:  # a file system without locks
            if not is_shown:
                print(f"warning: no lock can be taken in {directory}: {error}", file=sys.stderr)
            is_shown = True
        if not refused and not silence:
            return lock
        now = _beat(directory)
        if first and now and now["time"] != first["time"] and not now.get("finished"):
            lock.release(force=True)
            raise _in_use(directory, now)
        if time.monotonic() - begun >= (_PATIENCE_SECONDS if refused else silence):
            if refused:
                raise _in_use(directory, now)
            return lock
        first = first or now
        time.sleep(_LOOK_SECONDS)


def _note_taken(path: Path) -> None:
    """Finds the descriptor by its file, since filelock does not return it."""
    with suppress(OSError):
        file = os.stat(path)
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):
                if os.path.samestat(os.fstat(int(name)), file):
                    _taken.append((int(name), file))


def _beat(directory: Path) -> dict[str, Any] | None:
    """The main rank's heartbeat, if there is one."""
    try:
        return heartbeat.read(directory)[0]
    except DataError:
        return None


def _silence_needed(beat: dict[str, Any] | None) -> float:
    """Seconds of silence after which a run whose lock we have is dead; 0 on the same node."""
    if beat is None or beat.get("finished") or beat.get("host") == env.host_name():
        return 0.0
    if time.time() - beat["time"] > _STALE_SECONDS:
        return 0.0
    return _SILENT_BEATS * heartbeat.interval(beat.get("world_size") or 1)


def _in_use(directory: Path, beat: dict[str, Any] | None) -> DirectoryInUse:
    who = "another process, which has shown no heartbeat there"
    if beat is not None:
        age = max(0.0, time.time() - beat["time"])
        who = f"process {beat.get('pid')} on {beat.get('host')}, "
        who += f"whose last heartbeat is {age:.0f} s old"
    return DirectoryInUse(
        f"{directory} is in use by {who}. Two jobs in one run directory would overwrite each "
        "other's states by turns. Wait until that job has ended, or stop it (robomimic-ddp watch "
        "shows it), and resume then; or start a new run, without resume."
    )
