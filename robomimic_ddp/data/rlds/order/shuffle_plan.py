"""Compute the shuffle of one rank's sequence of windows, so that any position can be reached.

Window i enters at place i and leaves at a place drawn uniformly from [i, i + 2 * buffer). About
`buffer` windows wait at any time, as in a shuffle buffer of that size, but none longer than
2 * buffer: the state at any position follows from the 2 * buffer windows before it. Nothing leaves
before `buffer` windows have entered.
"""

from __future__ import annotations

import numpy as np

_TIE_BITS = 24


class Shuffle:
    """The order in which `count` windows leave: a pure function of (count, buffer, seed)."""

    def __init__(self, count: int, buffer: int, *seed: int) -> None:
        self.count, self.seed = count, seed
        self.spread = 2 * buffer if buffer > 1 else 1
        self._filled = buffer if buffer > 1 else 0

    def _keys(self, start: int, stop: int) -> np.ndarray:
        """Return the places of leaving of the windows [start, stop), with random bits for ties."""
        generator = np.random.PCG64(np.random.SeedSequence(self.seed))
        raw = generator.advance(start).random_raw(max(stop - start, 0))
        delay = ((raw >> np.uint64(32)) * np.uint64(self.spread)) >> np.uint64(32)
        place = np.arange(start, stop, dtype=np.int64) + delay.astype(np.int64)
        place = np.minimum(np.maximum(place, self._filled), self.count - 1)
        ties = raw & np.uint64((1 << _TIE_BITS) - 1)
        return (place.astype(np.uint64) << np.uint64(_TIE_BITS)) | ties

    def _around(self, start: int, stop: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Return the first window that may leave at [start, stop); keys and places from it on."""
        first = max(0, start - self.spread)
        keys = self._keys(first, min(stop, self.count))
        return first, keys, (keys >> np.uint64(_TIE_BITS)).astype(np.int64)

    def left_before(self, place: int) -> int:
        """Return how many windows leave before `place`."""
        _, _, places = self._around(place, place)
        return min(place, self.count) - int(np.count_nonzero(places >= place))

    def leaving(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the windows that leave at the places [start, stop), in order, and their places:
        int64 [N] each.
        """
        first, keys, places = self._around(start, stop)
        chosen = np.flatnonzero((places >= start) & (places < stop))
        chosen = chosen[np.argsort(keys[chosen], kind="stable")]
        return chosen + first, places[chosen]

    def waiting(self, gone: int) -> tuple[np.ndarray, int]:
        """Return, after `gone` windows have left, the windows before `then` that have not, int64
        [N] ascending, and `then`: none from there on has left.
        """
        if gone >= self.count:
            return np.zeros(0, np.int64), self.count
        low, high = min(gone, self.count - 1), min(gone + self.spread, self.count)
        while high - low > 1:  # the last place before which at most `gone` have left
            middle = (low + high) // 2
            low, high = (middle, high) if self.left_before(middle) <= gone else (low, middle)
        leaving, _ = self.leaving(low, low + 1)
        leaving = leaving[: gone - self.left_before(low)]
        first, _, places = self._around(low, low + 1)
        waits = places >= low
        waits[leaving - first] = False
        return np.flatnonzero(waits) + first, low + 1
