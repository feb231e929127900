"""How many windows of a batch come from each dataset of a mixture: equal on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

_AT_ONCE = 256
_DROPPED = 4096
"""Batches before the last one asked for that are forgotten together: a run has millions."""
_SIZE_BITS = 20
"""Low bits of a group's code; the others are the number of its batch."""


class Quotas:
    """Assign the windows of each batch to D datasets: by `weights`, to within two windows after any
    number of batches. before: windows of each before batch 0, of complete batches.

    To be asked in about the order of the batches: those far before the last one are forgotten.
    """

    def __init__(
        self, weights: Sequence[float], batch_size: int, before: Sequence[int] | None = None
    ) -> None:
        assert batch_size < 1 << _SIZE_BITS, batch_size
        self.weights = np.asarray(weights, np.float64) / np.sum(weights)
        self.batch_size = batch_size
        self._plain_weights = self.weights.tolist()
        # Windows before each batch, `before` included: a table with room to grow.
        self._table = np.zeros((2 * _AT_ONCE, len(weights)), np.int64)
        self._table[0] = [0] * len(weights) if before is None else before
        self._ends = self._table[:1]
        self._start, self._gone, self._asked = self._table[0].tolist(), 0, 0
        """Windows before batch 0; the batch of the table's first row; the last one asked for."""

    def of(self, batch: int) -> np.ndarray:
        """Return the windows of each dataset in batch `batch`, int64 [D]; sum: the batch size."""
        return self.before(batch + 1) - self.before(batch)

    def before(self, batch: int) -> np.ndarray:
        """Return the windows of each dataset before batch `batch`, int64 [D]."""
        self._extend(lambda: self._gone + len(self._ends) > batch)
        assert batch >= self._gone, (batch, self._gone)
        self._asked = batch
        return self._ends[batch - self._gone]

    def groups(self, number: int, first: int, count: int) -> np.ndarray:
        """Return the batch of each of `count` windows from `first` on, of dataset `number`, as
        ascending codes: int64.
        """
        start = self._start[number] + first
        self._extend(lambda: self._ends[-1, number] >= start + count)
        ends = self._ends[:, number]
        assert ends[0] <= start, (ends[0], start)
        row = np.searchsorted(ends, np.arange(start, start + count), "right") - 1
        batch = self._gone + row
        self._asked = int(batch[0]) if count else self._asked
        return (batch << _SIZE_BITS) | (ends[row + 1] - ends[row])

    @staticmethod
    def group_size(code: int) -> int:
        """Return the number of windows in the group with that code."""
        return code % (1 << _SIZE_BITS)

    def _extend(self, enough: Callable[[], bool]) -> None:
        while not enough():
            if len(self._ends) + _AT_ONCE > len(self._table):
                self._make_room()
            count = len(self._ends)
            before = self._ends[-1].tolist()
            for row in range(count, count + _AT_ONCE):
                before = [sum(pair) for pair in zip(before, self._next(before))]
                self._table[row] = before
            self._ends = self._table[: count + _AT_ONCE]

    def _make_room(self) -> None:
        used = self._asked - self._gone
        if used < _DROPPED:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            return
        rows = self._ends[used:].copy()
        self._table[: len(rows)] = rows
        self._ends, self._gone = self._table[: len(rows)], self._asked

    def _next(self, before: list[int]) -> list[int]:
        """Return the next quota, by the largest remainders. For a few datasets Python's numbers are
        faster.
        """
        total = sum(before) + self.batch_size
        due = [weight * total - number for weight, number in zip(self._plain_weights, before)]
        quota = [math.floor(max(number, 0.0)) for number in due]
        left = self.batch_size - sum(quota)
        step = 1 if left > 0 else -1
        for _ in range(abs(left)):
            lag = [
                step * (wanted - count) if count > 0 or step > 0 else -math.inf
                for wanted, count in zip(due, quota)
            ]
            quota[lag.index(max(lag))] += step
        return quota
