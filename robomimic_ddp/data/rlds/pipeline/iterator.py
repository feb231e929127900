"""Iterators over tf.data that end before Python does.

Its C++ threads call Python for plans (`graph`): while that is finalised, they would abort or hang
the process.
"""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import Any
from weakref import WeakSet


class Stream:
    """The elements of a tf.data pipeline, prefetched until the end, `close`, or exit."""

    def __init__(self, pipeline: Any) -> None:
        _close_at_exit()
        self._iterator = iter(pipeline)
        _open.add(self)

    def __next__(self) -> Any:
        return next(self._iterator)

    def close(self) -> None:
        """Stops prefetching, waits for pending reads, and frees the buffers."""
        self._iterator = iter(())  # TensorFlow ends its threads with the last reference


_open: WeakSet[Stream] = WeakSet()


@lru_cache(maxsize=1)
def _close_at_exit() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for stream in list(_open):
        stream.close()
