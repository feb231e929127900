"""What a pipeline reads and when: records, and the order in which their windows leave."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from robomimic_ddp.data.rlds.order.partition import Pieces
from robomimic_ddp.data.rlds.order.shuffle import Shuffle
from robomimic_ddp.data.rlds.order.windows import picked_windows

BLOCK_WINDOWS = 4096
"""At least so many windows are planned at once."""


@dataclass(frozen=True)
class Block:
    """Records to read, and which windows are complete after each: what tf.data is told at once.

    records: int64 [P, 6], of each record its file, offset, and the episode's taken, count, pick and
    base (see PassPlan); numbers: int64 [N], which of the taken windows are put into the store, of
    all records in turn; keys: int64 [N], under which key; stored: int64 [P + 1], where each
    record's part of the two begins. leaving: int64 [Q, 2], key and dataset number of the windows
    that leave the store, in order; left: int64 [P + 1], where the part that leaves after each
    record begins; first: int64 scalar, windows that the segment has assigned to the rank before.
    """

    records: np.ndarray
    numbers: np.ndarray
    keys: np.ndarray
    stored: np.ndarray
    leaving: np.ndarray
    left: np.ndarray
    first: np.ndarray

    def arrays(self) -> tuple[np.ndarray, ...]:
        """All of it, as tf.data takes it."""
        return tuple(np.asarray(getattr(self, one.name), np.int64) for one in fields(self))


@dataclass(frozen=True)
class PassPlan:
    """What one rank reads in one part of its schedule.

    file, offset: int64 [P], where the record of each of `pieces` lies; taken: how many windows its
    episode gives to a pass, of `count`; pick: see `windows.picked_windows`; base: the dataset's
    number of its window 0. shuffle: in which order the windows leave; first_key: the key of the
    first of them, in a row of keys that never repeats.
    """

    pieces: Pieces
    file: np.ndarray
    offset: np.ndarray
    taken: np.ndarray
    count: np.ndarray
    pick: np.ndarray
    base: np.ndarray
    shuffle: Shuffle
    first_key: int = 0

    def digest(self) -> str:
        """Hex digest of which windows are read, in which order."""
        digest = hashlib.blake2b(repr((self.shuffle.seed, self.first_key)).encode(), digest_size=16)
        for array in (*self.pieces.columns(), self.file, self.offset, self.pick):
            digest.update(np.asarray(array, np.int64).tobytes())
        return digest.hexdigest()

    @cached_property
    def cuts(self) -> np.ndarray:
        """The first piece of each block, and the number of pieces: int64 [blocks + 1]."""
        size = max(BLOCK_WINDOWS, self.shuffle.spread)
        _, first = np.unique(self.pieces.begins // size, return_index=True)
        return np.append(first, len(self.file)).astype(np.int64)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.cuts) - 1

    def index(self, windows: np.ndarray) -> np.ndarray:
        """The dataset's numbers of `windows` of the row, int64 [N]."""
        piece = np.searchsorted(self.pieces.ends, windows, "right")
        number = self.pieces.start[piece] + windows - self.pieces.begins[piece]
        picked = picked_windows(number, self.count[piece], self.taken[piece], self.pick[piece])
        return self.base[piece] + picked

    def block_of(self, taken: int) -> int:
        """The block in which reading goes on when `taken` windows have left."""
        _, then = self.shuffle.waiting(taken)
        begins = self.pieces.begins[self.cuts[:-1]]
        return int(np.searchsorted(begins, then - 1, "right")) - 1

    def block(self, number: int, taken: int = 0) -> Block:
        """Block `number`; for the one of `block_of(taken)` less the `taken` windows that have left,
        and with what is still to come of the records before it.
        """
        ends = self.pieces.ends
        start = int(self.pieces.begins[self.cuts[number]])
        stop = int(ends[self.cuts[number + 1] - 1])
        leaving, places = self.shuffle.leaving(start, stop)
        entering = np.arange(start, stop)
        before = self.shuffle.left_before(start)
        if taken:
            passed_over, before = taken - before, taken
            leaving, places = leaving[passed_over:], places[passed_over:]
            waiting, then = self.shuffle.waiting(taken)
            entering = np.concatenate([waiting, np.arange(then, stop)])
        piece = np.searchsorted(ends, entering, "right")
        _, first = np.unique(self.pieces.record[piece], return_index=True)
        read = piece[first]
        # What has left by the place where the next record begins is complete after this one.
        limits = np.append(self.pieces.begins[read[1:]], stop)
        columns = (self.file, self.offset, self.taken, self.count, self.pick, self.base)
        return Block(
            np.stack([column[read] for column in columns], 1),
            self.pieces.start[piece] + entering - self.pieces.begins[piece],
            self.first_key + entering,
            np.append(first, len(entering)),
            np.stack([self.first_key + leaving, self.index(leaving)], 1),
            np.append(0, np.searchsorted(places, limits, "left")),
            np.array(self.first_key + before),
        )
