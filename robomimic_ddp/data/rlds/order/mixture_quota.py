"""How many windows of a batch come from each dataset of a mixture: equal on all ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np


class Quotas:
    """Assigns the windows of each batch to D datasets: by `weights`, to within two windows after
    any number of batches. before: windows of each in the complete batches before the next one.
    """

    def __init__(
        self, weights: Sequence[float], batch_size: int, before: Sequence[int] | None = None
    ) -> None:
        self.weights = np.divide(weights, np.sum(weights)).tolist()
        self.batch_size = batch_size
        self.before = [0] * len(weights) if before is None else list(before)

    def next(self) -> list[int]:
        """Return the windows of each dataset in the next batch; their sum is the batch size."""
        quota = self._quota()
        self.before = [sum(pair) for pair in zip(self.before, quota)]
        return quota

    def sizes(self, number: int, after: int = 0) -> Iterator[int]:
        """Yield the windows of dataset `number` in each coming batch that has some of it, once
        `after` windows of it have come. Changes nothing here.
        """
        coming = copy.copy(self)
        while True:
            size = coming.next()[number]
            if after:
                after -= size
            elif size:
                yield size

    def _quota(self) -> list[int]:
        """Return the next quota, by the largest remainders. For a few datasets Python's numbers are
        faster.
        """
        total = sum(self.before) + self.batch_size
        due = [weight * total - number for weight, number in zip(self.weights, self.before)]
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
