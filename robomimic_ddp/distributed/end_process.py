"""The end of a process, with the workers that it has started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from typing import NoReturn


def exit_with_workers(code: int) -> NoReturn:
    """Ends this process and its data workers at once: a worker that hangs in a read would outlive
    it, and keep the lock of the run directory.
    """
    if threading.current_thread() is threading.main_thread():
        # torch's handler raises if a worker is killed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with suppress(Exception):
        for child in multiprocessing.active_children():
            child.kill()
    os._exit(code)
