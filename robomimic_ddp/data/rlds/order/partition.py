"""Which rank reads which windows in which pass: pure arithmetic, the same on every rank, no
communication.

A pass visits every window of a dataset once. Its files come in an order drawn from (seed, pass),
the episodes of each file likewise; laid end to end they form one row of windows, which is cut into
one stretch per rank. So a rank owns whole files except at its two cuts, where a file (or, with more
ranks than files, most of them) is shared by record, and a single episode by window. Records are
fetched by byte offset: nobody reads a record of others.

The stretches are as equal as integers allow *over the whole run*: when `before` windows have been
given out to all ranks, each has floor or ceil of before / world of them. Batches are cut from each
rank's endless row of windows, so a pass's leftovers open the next pass by themselves, and the
number of full batches that all ranks then have is floor(before / (world * batch)): closed formulas,
equal on all ranks, for any position of the run. `pass_schedule` strings passes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

FILE_ORDER, EPISODE_ORDER, PIECE_ORDER, WINDOW_PICK, SHUFFLE = range(5)
"""Separate random streams of one (seed, pass)."""


@dataclass(frozen=True)
class Pieces:
    """A row of windows: parts of episodes laid end to end; int64 [P] each.

    episode: a row number of the table of episodes; start, stop: the piece's part [start, stop) of
    that episode's windows of pass `number`.
    """

    episode: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    number: np.ndarray

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each piece ends in the row, int64 [P]."""
        return np.cumsum(self.stop - self.start)

    @cached_property
    def begins(self) -> np.ndarray:
        """Where each piece begins in the row, int64 [P]."""
        return self.ends - (self.stop - self.start)

    @property
    def windows(self) -> int:
        """Windows in the row."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @cached_property
    def record(self) -> np.ndarray:
        """Of each piece the number, from 0 on, of the reading of a record that serves it, int64
        [P]: neighbours of one episode and pass share one.
        """
        new = np.ones(len(self.episode), bool)
        new[1:] = (np.diff(self.episode) != 0) | (np.diff(self.number) != 0)
        return np.cumsum(new) - 1

    def taken(self, chosen: np.ndarray) -> Pieces:
        """The pieces with the numbers `chosen`, in that order."""
        return Pieces(*(column[chosen] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        """episode, start, stop, number."""
        return self.episode, self.start, self.stop, self.number

    def cut(self, start: int, stop: int) -> Pieces:
        """The stretch [start, stop) of the row."""
        first = int(np.searchsorted(self.ends, start, "right"))
        last = int(np.searchsorted(self.begins, stop, "left")) if stop > start else first
        part = self.taken(slice(first, last))
        begins, ends = self.begins[first:last], self.ends[first:last]
        return Pieces(
            part.episode,
            part.start + np.maximum(start - begins, 0),
            part.stop - np.maximum(ends - stop, 0),
            part.number,
        )

    def at(self, windows: np.ndarray) -> Pieces:
        """Only the `windows` of the row, int64 [N], ascending: as few pieces as hold them."""
        piece = np.searchsorted(self.ends, windows, "right")
        inside = self.start[piece] + windows - self.begins[piece]
        new = np.ones(len(windows), bool)
        new[1:] = (np.diff(piece) != 0) | (np.diff(inside) != 1)
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(windows)) - 1 if len(first) else first
        whole = self.taken(piece[first])
        return Pieces(whole.episode, inside[first], inside[last] + 1, whole.number)


def joined(rows: Sequence[Pieces]) -> Pieces:
    """The rows laid end to end."""
    return Pieces(*(np.concatenate(column) for column in zip(*(row.columns() for row in rows))))


def random_keys(count: int, *seed: int) -> np.ndarray:
    """`count` random uint64, a pure function of `seed`; raw bits, which numpy keeps equal over its
    versions.
    """
    return np.random.PCG64(np.random.SeedSequence(seed)).random_raw(count)


def permutation(count: int, *seed: int) -> np.ndarray:
    """A permutation of range(count), int64 [count], a pure function of `seed`."""
    return np.argsort(random_keys(count, *seed), kind="stable").astype(np.int64)


def pass_order(file_of_episode: np.ndarray, seed: int, pass_number: int) -> np.ndarray:
    """The episodes in the order of this pass, int64 [E]: files in a new order, episodes of a file
    together.
    """
    files, position = np.unique(file_of_episode, return_inverse=True)
    rank_of_file = permutation(len(files), seed, pass_number, FILE_ORDER)
    within = random_keys(len(file_of_episode), seed, pass_number, EPISODE_ORDER)
    return np.lexsort((within, rank_of_file[position])).astype(np.int64)


def whole_row(windows: np.ndarray, order: np.ndarray, pass_number: int) -> Pieces:
    """The row of all windows of a pass: episodes with `windows` [E] each, in the `order` [E]."""
    order = order[windows[order] > 0]
    zeros = np.zeros(len(order), np.int64)
    return Pieces(order, zeros, windows[order].astype(np.int64), zeros + pass_number)


def windows_given(before: int, rank: int, world_size: int) -> int:
    """How many of the first `before` windows that all ranks are given belong to `rank`."""
    return (rank + 1) * before // world_size - rank * before // world_size


def stretch(before: int, after: int, rank: int, world_size: int) -> tuple[int, int]:
    """The stretch [start, stop) that belongs to `rank` of the row that brings the windows given to
    all ranks from `before` to `after`.

    Needs a window per rank where `before` is not 0; the loader asks for a whole batch per rank.
    """
    assert after - before >= world_size or before == 0, (before, after, world_size)

    def cut(number: int) -> int:
        return number * after // world_size - number * before // world_size

    return cut(rank), cut(rank + 1)
