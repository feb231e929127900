"""Writes snapshots in a thread while training continues. One that waits is replaced by a newer one.

Memory is bounded: of all moments at most two are in memory, the one that is being written and the
one that waits.
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
_MOMENTS = 2


@dataclass
class _Job:
    name: str
    steps: list[Callable[[], None]]
    failed: Callable[[BaseException], None]
    snapshot: Snapshot | None = None
    deferred: bool = False
    must_be_written: bool = False


class Writer:
    """Main rank: one thread that writes snapshots, in order. On other ranks it has nothing to do.

    A job that waits is replaced by a newer one of its name, unless it `must_be_written`: one of
    its steps makes a file that no later job makes. A job that is `deferred` begins when the
    moment is over (`release`), after those that are not. An error of a job goes to its `failed`, in
    the thread.
    """

    def __init__(self) -> None:
        self._buffers = Buffers()
        self._present: Snapshot | None = None
        self._live = 0
        self._jobs: list[_Job] = []
        self._current: _Job | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def copy(self, name: str, nest: Any) -> Any:
        """Return a copy of `nest` as it is now, for the file `name`. Waits where two earlier
        moments are in memory; what waits under `name` is withdrawn first.
        """
        with self._changed:
            for job in [job for job in self._jobs if job.name == name and not job.must_be_written]:
                self._jobs.remove(job)
                self._done_with(job)
            if self._present is None:
                with watchdog.saving("earlier files"):
                    self._changed.wait_for(lambda: self._live < _MOMENTS)
                self._present, self._live = Snapshot(self._buffers), self._live + 1
            snapshot = self._present
        return snapshot.copy(nest)

    def put(
        self,
        name: str,
        write: Callable[[], None],
        failed: Callable[[BaseException], None],
        deferred: bool = False,
    ) -> None:
        """Queue `write`, which uses copies of the present moment."""
        with self._changed:
            job = _Job(name, [write], failed, self._present, deferred)
            if job.snapshot is not None:
                job.snapshot.users += 1
            self._jobs.append(job)
            self._changed.notify_all()
        self._begin()

    def also(self, name: str, step: Callable[[], None], keep: bool = False) -> bool:
        """Add `step` to the job `name` if that is deferred; return whether it is."""
        with self._changed:
            for job in self._jobs:
                if job.name == name and job.deferred:
                    job.steps.append(step)
                    job.must_be_written |= keep
                    return True
        return False

    def release(self) -> None:
        """End the moment: what changes from now on is copied again, and deferred jobs begin."""
        with self._changed:
            self._jobs.sort(key=lambda job: job.deferred)
            for job in self._jobs:
                job.deferred = False
            snapshot, self._present = self._present, None
            self._free_unused(snapshot)
            self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all is written, or for `timeout` seconds; return whether it is."""
        self.release()
        with watchdog.saving("the last files"), self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._current, timeout)

    def close(self) -> None:
        """Write what waits, for a while, and end the thread."""
        self.flush(EXIT_SECONDS)
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _begin(self) -> None:
        if self._thread is None:
            # A daemon: a disk that hangs must not keep the process.
            self._thread = threading.Thread(
                target=self._work, name="robomimic-ddp-writer", daemon=True
            )
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next() is not None)
                job = self._current = self._next()
                if job is None:
                    return
                self._jobs.remove(job)
            self._run(job)
            with self._changed:
                self._current = None
                self._done_with(job)
                self._changed.notify_all()

    def _next(self) -> _Job | None:
        return next((job for job in self._jobs if not job.deferred), None)

    def _run(self, job: _Job) -> None:
        try:
            for step in job.steps:
                step()
        except BaseException as error:  # a thread that ended would leave its jobs to wait
            with suppress(Exception):
                job.failed(error)

    def _done_with(self, job: _Job) -> None:
        job.steps.clear()
        if job.snapshot is not None:
            job.snapshot.users -= 1
            self._free_unused(job.snapshot)

    def _free_unused(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None and not snapshot.users and snapshot is not self._present:
            snapshot.free()
            self._live -= 1
