"""The shuffle of one rank's row of windows, as arithmetic: which window leaves when.

Window i of the row enters at place i and leaves at a place drawn evenly from [i, i + 2 * buffer).
So about `buffer` windows wait at any time, as long as in a shuffle buffer of that size, but never
longer than 2 * buffer: any position of the row is reached from the 2 * buffer windows before it,
without going through all that came earlier. Nothing leaves before `buffer` windows have entered.
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
        """Of the windows [start, stop) the place of leaving and random bits for ties, uint64."""
        generator = np.random.PCG64(np.random.SeedSequence(self.seed))
        raw = generator.advance(start).random_raw(max(stop - start, 0))
        delay = ((raw >> np.uint64(32)) * np.uint64(self.spread)) >> np.uint64(32)
        place = np.arange(start, stop, dtype=np.int64) + delay.astype(np.int64)
        place = np.minimum(np.maximum(place, self._filled), self.count - 1)
        ties = raw & np.uint64((1 << _TIE_BITS) - 1)
        return (place.astype(np.uint64) << np.uint64(_TIE_BITS)) | ties

    def _around(self, start: int, stop: int) -> tuple[int, np.ndarray, np.ndarray]:
        """The first window that may leave at [start, stop), and from it on to window `stop` the
        keys and places.
        """
        first = max(0, start - self.spread)
        keys = self._keys(first, min(stop, self.count))
        return first, keys, (keys >> np.uint64(_TIE_BITS)).astype(np.int64)

    def left_before(self, place: int) -> int:
        """Windows that leave before `place`."""
        _, _, places = self._around(place, place)
        return min(place, self.count) - int(np.count_nonzero(places >= place))

    def leaving(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The windows that leave at the places [start, stop), in their order, and those places:
        int64 [N] both.
        """
        first, keys, places = self._around(start, stop)
        chosen = np.flatnonzero((places >= start) & (places < stop))
        chosen = chosen[np.argsort(keys[chosen], kind="stable")]
        return chosen + first, places[chosen]

    def waiting(self, taken: int) -> tuple[np.ndarray, int]:
        """When `taken` windows have left: those before window `then` that have not, int64 [N]
        ascending, and `then`, from which on none has.
        """
        if taken >= self.count:
            return np.zeros(0, np.int64), self.count
        low, high = min(taken, self.count - 1), min(taken + self.spread, self.count)
        while high - low > 1:  # the last place before which at most `taken` have left
            middle = (low + high) // 2
            low, high = (middle, high) if self.left_before(middle) <= taken else (low, middle)
        left, _ = self.leaving(low, low + 1)
        gone = left[: taken - self.left_before(low)]
        first, _, places = self._around(low, low + 1)
        waits = places >= low
        waits[gone - first] = False
        return np.flatnonzero(waits) + first, low + 1
