"""How much of each batch comes from which data set of a mixture: arithmetic, equal on all ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

_AT_ONCE = 256
_SIZE_BITS = 20
"""Of a group's code: the rest is the number of its batch."""


class Quotas:
    """Windows that each of D data sets gives to each batch of `batch_size` windows.

    After any number of batches each has given its `weights` share to within one window or two.
    `given`: how many each gave before, of whole batches; the rest of the class counts from there.
    """

    def __init__(
        self, weights: Sequence[float], batch_size: int, given: Sequence[int] | None = None
    ) -> None:
        assert batch_size < 1 << _SIZE_BITS, batch_size
        self.weights = np.asarray(weights, np.float64) / np.sum(weights)
        self.batch_size = batch_size
        self.given = np.asarray(given if given is not None else [0] * len(weights), np.int64)
        self._ends = np.zeros((1, len(weights)), np.int64)
        self._lock = threading.Lock()

    def of(self, batch: int) -> np.ndarray:
        """Windows of each data set in batch number `batch`, int64 [D]; together a whole batch."""
        self._extend(lambda: len(self._ends) > batch + 1)
        return self._ends[batch + 1] - self._ends[batch]

    def given_before(self, batch: int) -> np.ndarray:
        """Windows that each data set has given when batch number `batch` begins, `given` included:
        int64 [D].
        """
        self._extend(lambda: len(self._ends) > batch)
        return self.given + self._ends[batch]

    def groups(self, number: int, first: int, count: int) -> np.ndarray:
        """To which batch each of `count` windows of data set `number` belongs, from its window
        `first` on: codes that rise with the batch, int64 [count]; `group_size` reads them.
        """
        self._extend(lambda: self._ends[-1, number] >= first + count)
        ends = self._ends[:, number]
        batch = np.searchsorted(ends, np.arange(first, first + count), "right") - 1
        return (batch << _SIZE_BITS) | (ends[batch + 1] - ends[batch])

    @staticmethod
    def group_size(code: int) -> int:
        """Windows in the group with that code (an integer of Python, numpy or TensorFlow)."""
        return code % (1 << _SIZE_BITS)

    def _extend(self, enough: Callable[[], bool]) -> None:
        with self._lock:
            while not enough():
                ends = [self._ends[-1]]
                for _ in range(_AT_ONCE):
                    ends.append(ends[-1] + self._next(self.given + ends[-1]))
                self._ends = np.concatenate([self._ends, ends[1:]])

    def _next(self, given: np.ndarray) -> np.ndarray:
        """Largest remainders of what each data set is due at the end of the next batch."""
        due = self.weights * (given.sum() + self.batch_size) - given
        quota = np.floor(np.maximum(due, 0)).astype(np.int64)
        while quota.sum() != self.batch_size:
            step = 1 if quota.sum() < self.batch_size else -1
            lag = np.where((quota > 0) | (step > 0), step * (due - quota), -np.inf)
            quota[int(np.argmax(lag))] += step
        return quota
