"""Ends a process with the one that started it, even where that is killed and says nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_SET_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's <sys/prctl.h>."""


def ending_with(parent: int, number: int) -> Callable[[], None]:
    """Return a function to be called in a child of `parent`: the kernel then sends the child the
    signal `number` once its parent has ended. On systems other than Linux it does nothing.

    The kernel means the thread that started the child: only for children of a main thread.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # here: a fork may load no library

    def tie() -> None:
        if prctl is not None:
            prctl(_SET_SIGNAL, number)
            if os.getppid() != parent:  # it has ended before that
                os.kill(os.getpid(), number)

    return tie
