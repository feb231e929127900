"""Which rank reads which windows in which pass: pure functions, without communication.

A pass visits every window of a dataset once, in the order of `pass_order`. This sequence of windows
is split into one contiguous range per rank: a rank has whole files except at the two ends of its
range, where a file is divided by record and an episode by window. Records are read by byte offset,
so no rank reads records of others.

Ranges are as equal as integers allow *over the whole run*: after `before` windows of all ranks,
each rank has floor or ceil of before / world. Batches are taken from each rank's endless sequence,
so the rest of a pass starts the next one, and all ranks have floor(before / (world * batch)) full
batches: closed formulas for any position. `pass_schedule` chains passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Pieces:
    """A sequence of windows as parts of episodes, int64 [P] each. episode: row of the table; start,
    stop: the range [start, stop) of that episode's windows of pass `number`.
    """

    episode: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    number: np.ndarray

    @cached_property
    def ends(self) -> np.ndarray:
        """End of each piece in the sequence, int64 [P]."""
        return np.cumsum(self.stop - self.start)

    @cached_property
    def begins(self) -> np.ndarray:
        """Start of each piece in the sequence, int64 [P]."""
        return self.ends - (self.stop - self.start)

    @property
    def windows(self) -> int:
        """Number of windows."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @cached_property
    def record(self) -> np.ndarray:
        """For each piece the number of its read of a record, from 0, int64 [P]: adjacent pieces of
        one episode and pass share one.
        """
        new = np.ones(len(self.episode), bool)
        new[1:] = (np.diff(self.episode) != 0) | (np.diff(self.number) != 0)
        return np.cumsum(new) - 1

    def select(self, chosen: np.ndarray) -> Pieces:
        """Return the pieces with the numbers `chosen`, in that order."""
        return Pieces(*(column[chosen] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        """episode, start, stop, number."""
        return self.episode, self.start, self.stop, self.number

    def cut(self, start: int, stop: int) -> Pieces:
        """Return the range [start, stop) of the sequence."""
        first = int(np.searchsorted(self.ends, start, "right"))
        last = int(np.searchsorted(self.begins, stop, "left")) if stop > start else first
        pieces = self.select(slice(first, last))
        begins, ends = self.begins[first:last], self.ends[first:last]
        return Pieces(
            pieces.episode,
            pieces.start + np.maximum(start - begins, 0),
            pieces.stop - np.maximum(ends - stop, 0),
            pieces.number,
        )

    def at(self, windows: np.ndarray) -> Pieces:
        """Return only the `windows` of the sequence, int64 [N] ascending, in the fewest pieces."""
        piece = np.searchsorted(self.ends, windows, "right")
        inside = self.start[piece] + windows - self.begins[piece]
        new = np.ones(len(windows), bool)
        new[1:] = (np.diff(piece) != 0) | (np.diff(inside) != 1)
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(windows)) - 1 if len(first) else first
        pieces = self.select(piece[first])
        return Pieces(pieces.episode, inside[first], inside[last] + 1, pieces.number)


def joined(rows: Sequence[Pieces]) -> Pieces:
    """Concatenate sequences."""
    return Pieces(*(np.concatenate(column) for column in zip(*(row.columns() for row in rows))))


def pass_row(windows: np.ndarray, order: np.ndarray, pass_number: int) -> Pieces:
    """Return all windows of a pass: episodes with `windows` [E] each, in the `order` [E]."""
    order = order[windows[order] > 0]
    zeros = np.zeros(len(order), np.int64)
    return Pieces(order, zeros, windows[order].astype(np.int64), zeros + pass_number)


def windows_of_rank(before: int, rank: int, world_size: int) -> int:
    """Return how many of the first `before` windows of all ranks belong to `rank`."""
    return (rank + 1) * before // world_size - rank * before // world_size


def stretch(before: int, after: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the range [start, stop) of `rank` in the windows `before` to `after` of all ranks, at
    least one for each rank if `before` is not 0.
    """
    assert after - before >= world_size or before == 0, (before, after, world_size)

    def cut(number: int) -> int:
        return number * after // world_size - number * before // world_size

    return cut(rank), cut(rank + 1)
