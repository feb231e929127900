"""The end of a process, with the workers that it has started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

_WRITE_SECONDS = 3.0

_last_writes: list[Callable[[], None]] = []
_writers: list[threading.Thread] = []


def write_before_end(write: Callable[[], None]) -> None:
    """`write` is called once, when training ends or this process ends at once, which skips Python's
    exit functions. It may fail, and has three seconds.
    """
    _last_writes.append(write)


def finish_writes() -> None:
    """Calls what `write_before_end` was given, each in a thread: a disk or a lock could hang. A
    second caller, such as a signal's handler, waits for the same threads.
    """
    while _last_writes:
        _writers.append(threading.Thread(target=_attempt, args=[_last_writes.pop()], daemon=True))
    for writer in _writers:
        with suppress(RuntimeError):  # it has been started, or there are no more threads
            writer.start()
    end = time.monotonic() + _WRITE_SECONDS
    for writer in _writers:
        with suppress(RuntimeError):  # it could not be started
            writer.join(max(0.0, end - time.monotonic()))


def _attempt(write: Callable[[], None]) -> None:
    with suppress(Exception):
        write()


@contextmanager
def writes_finished() -> Iterator[None]:
    """`finish_writes` at the end of the block, also after an error."""
    try:
        yield
    finally:
        finish_writes()


def exit_with_workers(code: int) -> NoReturn:
    """Ends this process and its data workers at once: a worker that hangs in a read would outlive
    it, and keep the lock of the run directory.
    """
    finish_writes()
    if threading.current_thread() is threading.main_thread():
        # torch's handler raises if a worker is killed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with suppress(Exception):
        for child in multiprocessing.active_children():
            child.kill()
    os._exit(code)
