"""The end of a process, with the workers that it has started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

_WRITE_SECONDS = 3.0

_last_writes: list[Callable[[], None]] = []


def write_before_end(write: Callable[[], None]) -> None:
    """`write` is called once, when an entry point ends or this process ends at once, which skips
    Python's exit functions. It may fail, and has three seconds.
    """
    _last_writes.append(write)


def finish_writes() -> None:
    """Calls what `write_before_end` was given, in a thread: a disk or a lock could hang."""

    def finish() -> None:
        while _last_writes:
            with suppress(Exception):
                _last_writes.pop()()

    if _last_writes:
        with suppress(RuntimeError):  # no more threads
            writer = threading.Thread(target=finish, name="robomimic-ddp-last-writes", daemon=True)
            writer.start()
            writer.join(_WRITE_SECONDS)


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
