"""How many windows of a batch come from each dataset of a mixture: equal on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

_AT_ONCE = 256
_SIZE_BITS = 20
"""Low bits of a group's code; the others are the number of its batch."""


class Quotas:
    """Windows of each of D datasets in each batch: by `weights`, to within two windows after any
    number of batches. given: windows of each before batch 0, of whole batches.
    """

    def __init__(
        self, weights: Sequence[float], batch_size: int, given: Sequence[int] | None = None
    ) -> None:
        assert batch_size < 1 << _SIZE_BITS, batch_size
        self.weights = np.asarray(weights, np.float64) / np.sum(weights)
        self.batch_size = batch_size
        self.given = np.asarray(given if given is not None else [0] * len(weights), np.int64)
        self._plain_weights = self.weights.tolist()
        # Windows before each batch, `given` included: a table with room to grow.
        self._table = np.zeros((2 * _AT_ONCE, len(weights)), np.int64)
        self._table[0] = self.given
        self._ends = self._table[:1]

    def of(self, batch: int) -> np.ndarray:
        """Windows of each dataset in batch number `batch`, int64 [D]; sum: the batch size."""
        self._extend(lambda: len(self._ends) > batch + 1)
        return self._ends[batch + 1] - self._ends[batch]

    def given_before(self, batch: int) -> np.ndarray:
        """Windows of each dataset before batch number `batch`, `given` included: int64 [D]."""
        self._extend(lambda: len(self._ends) > batch)
        return self._ends[batch]

    def groups(self, number: int, first: int, count: int) -> np.ndarray:
        """The batch of each of `count` windows from `first` on, as ascending codes: int64."""
        start = int(self.given[number]) + first
        self._extend(lambda: self._ends[-1, number] >= start + count)
        ends = self._ends[:, number]
        batch = np.searchsorted(ends, np.arange(start, start + count), "right") - 1
        return (batch << _SIZE_BITS) | (ends[batch + 1] - ends[batch])

    @staticmethod
    def group_size(code: int) -> int:
        """Windows in the group with that code (an integer of Python, numpy or TensorFlow)."""
        return code % (1 << _SIZE_BITS)

    def _extend(self, enough: Callable[[], bool]) -> None:
        while not enough():
            count = len(self._ends)
            if count + _AT_ONCE > len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            given = self._ends[-1].tolist()
            for row in range(count, count + _AT_ONCE):
                given = [sum(pair) for pair in zip(given, self._next(given))]
                self._table[row] = given
            self._ends = self._table[: count + _AT_ONCE]

    def _next(self, given: list[int]) -> list[int]:
        """Largest-remainder apportionment; Python numbers are faster for a few datasets."""
        total = sum(given) + self.batch_size
        due = [weight * total - number for weight, number in zip(self._plain_weights, given)]
        quota = [math.floor(max(number, 0.0)) for number in due]
        left = self.batch_size - sum(quota)
        step = 1 if left > 0 else -1
        for _ in range(abs(left)):
            lag = [
                step * (wanted - taken) if taken > 0 or step > 0 else -math.inf
                for wanted, taken in zip(due, quota)
            ]
            quota[lag.index(max(lag))] += step
        return quota
