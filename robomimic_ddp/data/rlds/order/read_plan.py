"""Plans of what a pipeline reads: records, and the order in which their windows leave."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from robomimic_ddp.data.rlds.order.partition import Pieces
from robomimic_ddp.data.rlds.order.shuffle_plan import Shuffle
from robomimic_ddp.data.rlds.order.windows import picked_windows

BLOCK_WINDOWS = 4096
"""Least windows of a block."""


@dataclass(frozen=True)
class Block:
    """Records to read, and which windows leave the store after each.

    records: int64 [P, 6], each record's file, offset, and the episode's per_pass, count, pick and
    base (see PassPlan); numbers: int64 [N], which of its windows in the pass are put into the
    store, record by record; keys: int64 [N], their keys; stored: int64 [P + 1], start of each
    record in these two. leaving: int64 [Q, 2], key and dataset number of the windows that leave the
    store, in order; left: int64 [P + 1], start in `leaving` of those that leave after each record.
    """

    records: np.ndarray
    numbers: np.ndarray
    keys: np.ndarray
    stored: np.ndarray
    leaving: np.ndarray
    left: np.ndarray


@dataclass(frozen=True)
class PassPlan:
    """What one rank reads in one part of its schedule.

    file, offset: int64 [P], the record of each of `pieces`; per_pass: windows of its episode in
    a pass, of `count`; pick: see `windows.picked_windows`; base: the dataset's number of its window
    0. shuffle: the order in which the windows leave; first_key: the key of the first; keys are
    unique.
    """

    pieces: Pieces
    file: np.ndarray
    offset: np.ndarray
    per_pass: np.ndarray
    count: np.ndarray
    pick: np.ndarray
    base: np.ndarray
    shuffle: Shuffle
    first_key: int = 0

    def digest(self) -> str:
        """Return a hex digest of which windows are read, in which order."""
        digest = hashlib.blake2b(repr((self.shuffle.seed, self.first_key)).encode(), digest_size=16)
        for array in (*self.pieces.columns(), self.file, self.offset, self.pick):
            digest.update(np.asarray(array, np.int64).tobytes())
        return digest.hexdigest()

    @cached_property
    def cuts(self) -> np.ndarray:
        """The first piece of each block, then the number of pieces: int64 [blocks + 1]."""
        size = max(BLOCK_WINDOWS, self.shuffle.spread)
        _, first = np.unique(self.pieces.begins // size, return_index=True)
        return np.append(first, len(self.file)).astype(np.int64)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.cuts) - 1

    def index(self, windows: np.ndarray) -> np.ndarray:
        """Return the dataset's numbers of `windows` of this plan, int64 [N]."""
        piece = np.searchsorted(self.pieces.ends, windows, "right")
        number = self.pieces.start[piece] + windows - self.pieces.begins[piece]
        picked = picked_windows(number, self.count[piece], self.per_pass[piece], self.pick[piece])
        return self.base[piece] + picked

    def block_of(self, delivered: int) -> int:
        """Return the block in which reading resumes after `delivered` windows."""
        _, then = self.shuffle.waiting(delivered)
        begins = self.pieces.begins[self.cuts[:-1]]
        return int(np.searchsorted(begins, then - 1, "right")) - 1

    def block(self, number: int, delivered: int = 0) -> Block:
        """Return block `number`; that of `block_of(delivered)` without what was delivered."""
        ends = self.pieces.ends
        last = self.cuts[number + 1] - 1
        start, stop = int(self.pieces.begins[self.cuts[number]]), int(ends[last])
        leaving, places = self.shuffle.leaving(start, stop)
        entering = np.arange(start, stop)
        if delivered:
            waiting, then = self.shuffle.waiting(delivered)
            entering = np.concatenate([waiting, np.arange(then, stop)])
            gone = delivered - self.shuffle.left_before(start)
            leaving, places = leaving[gone:], places[gone:]
        piece = np.searchsorted(ends, entering, "right")
        _, first = np.unique(self.pieces.record[piece], return_index=True)
        read = piece[first]
        # Windows that leave before the next record starts are complete after this one.
        limits = np.append(self.pieces.begins[read[1:]], stop)
        columns = (self.file, self.offset, self.per_pass, self.count, self.pick, self.base)
        return Block(
            np.stack([column[read] for column in columns], 1),
            self.pieces.start[piece] + entering - self.pieces.begins[piece],
            self.first_key + entering,
            np.append(first, len(entering)),
            np.stack([self.first_key + leaving, self.index(leaving)], 1),
            np.append(0, np.searchsorted(places, limits, "left")),
        )
