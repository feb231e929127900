"""Iterators over tf.data that end before Python does.

tf.data reads ahead in threads of its own, where plans are computed by Python (`pipeline`). A thread
that wants the interpreter while it is being finalised is ended by it in the middle of C++: the
process aborts ("terminate called without an active exception"), or waits for ever for what that
thread was to do.
"""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import Any
from weakref import WeakSet


class Stream:
    """The elements of a tf.data pipeline, read ahead until the end, `close`, or Python's end."""

    def __init__(self, pipeline: Any) -> None:
        _close_at_exit()
        self._iterator = iter(pipeline)
        _open.add(self)

    def __next__(self) -> Any:
        return next(self._iterator)

    def close(self) -> None:
        """Stops reading ahead, waits for what is being read, and frees the buffers."""
        self._iterator = iter(())  # TensorFlow ends its threads with the last reference


_open: WeakSet[Stream] = WeakSet()


@lru_cache(maxsize=1)
def _close_at_exit() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for stream in list(_open):
        stream.close()
