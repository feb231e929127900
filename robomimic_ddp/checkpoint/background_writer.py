"""Writes files in a thread while training continues, from copies. A newer file replaces one of its
name that waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from robomimic_ddp.checkpoint.snapshot import Buffers, Snapshot
from robomimic_ddp.distributed import watchdog

EXIT_SECONDS = 10.0
"""How long a process that must end waits for its files: launchers kill it after 30 s."""
_MOST_WAITING = 3
"""Copies in memory of files that wait, such as a state, last.pth and one of models/."""


@dataclass
class _Job:
    write: Callable[[], None]
    failed: Callable[[BaseException], None]
    snapshot: Snapshot | None
    source: str | None
    is_first: bool
    is_begun: bool = False


class Writer:
    """Main rank: one thread that writes files, in order. On other ranks it has nothing to do.

    What is `put` waits for `begin`. An error of a job goes to its `failed`, in the thread.
    """

    def __init__(self) -> None:
        self._buffers = Buffers()
        self._jobs: dict[str, _Job] = {}
        """By the names of their files."""
        self._current: _Job | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def copy(self, name: str, nest: Any) -> Snapshot:
        """Return a copy of `nest` as it is now, for the file `name`. What waits under that name is
        withdrawn; where too many others wait, training does.
        """
        with self._changed:
            self._withdraw(name)
            if self._copies() >= _MOST_WAITING:
                self.begin()
                with watchdog.saving("earlier files"):
                    self._changed.wait_for(lambda: self._copies() < _MOST_WAITING)
        return Snapshot(nest, self._buffers)

    def put(
        self,
        name: str,
        write: Callable[[], None],
        failed: Callable[[BaseException], None],
        snapshot: Snapshot | None = None,
        source: str | None = None,
        first: bool = False,
    ) -> None:
        """Queue `write` for the file `name`, before others if `first`, in place of what waits
        under that name. `snapshot`: what it writes, whose memory is used again afterwards.
        `source`: the file that it copies, with which it is withdrawn.
        """
        with self._changed:
            self._withdraw(name)
            self._jobs[name] = _Job(write, failed, snapshot, source, first)
            if self._thread is None:
                # A daemon: a disk that hangs must not keep the process.
                self._thread = threading.Thread(
                    target=self._work, name="robomimic-ddp-writer", daemon=True
                )
                self._thread.start()

    def begin(self) -> None:
        """Write what waits."""
        with self._changed:
            for job in self._jobs.values():
                job.is_begun = True
            self._changed.notify_all()

    def waits(self, name: str) -> bool:
        """Return whether the file `name` is still to be written."""
        with self._changed:
            return name in self._jobs

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all is written, or for `timeout` seconds; return whether it is."""
        self.begin()
        with watchdog.saving("the last files"), self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._current, timeout)

    def close(self) -> None:
        """Write what waits, for a while, and end the thread: Python aborts the process if it ends
        while a thread frees tensors.
        """
        is_written = self.flush(EXIT_SECONDS)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if is_written and self._thread is not None:
            self._thread.join(EXIT_SECONDS)

    def _copies(self) -> int:
        return sum(job.snapshot is not None for job in self._jobs.values())

    def _withdraw(self, name: str) -> None:
        for key, job in list(self._jobs.items()):
            if name in (key, job.source):
                del self._jobs[key]
                if job.snapshot is not None:
                    job.snapshot.free()

    def _next(self) -> str | None:
        begun = (name for name, job in self._jobs.items() if job.is_begun)
        return min(begun, key=lambda name: not self._jobs[name].is_first, default=None)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None or self._is_closed)
                name = self._next()
                if name is None:
                    return
                self._current = job = self._jobs.pop(name)
                self._changed.notify_all()
            try:
                job.write()
            except BaseException as error:  # a thread that ended would leave its jobs to wait
                with suppress(Exception):
                    job.failed(error)
            with self._changed:
                if job.snapshot is not None:
                    job.snapshot.free()
                self._current = None
                self._changed.notify_all()
            del job  # with what it refers to, which may be large
