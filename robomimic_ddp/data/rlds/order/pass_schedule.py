"""The schedule of all ranks over a dataset: pass after pass, also if ranks or batch size change.

A segment of a run has one number of ranks, one batch size and one shuffle buffer size. It consists
of parts: part k is pass `first_pass + k`. The part 0 of a segment that follows another is the rest
of that one's pass, divided again over the new ranks; what was in their shuffle buffers belongs to
it. Everything follows from the segments: a position is a few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robomimic_ddp.data.rlds.order.partition import (
    Pieces,
    joined,
    pass_row,
    stretch,
    windows_of_rank,
)
from robomimic_ddp.data.rlds.order.pass_order import PIECE_ORDER, SHUFFLE, pass_order, permutation
from robomimic_ddp.data.rlds.order.shuffle_plan import Shuffle


@dataclass(frozen=True)
class Segment:
    """`world_size` ranks, batches of `batch_size` and a shuffle buffer of `buffer` windows."""

    world_size: int
    batch_size: int
    buffer: int


@dataclass(frozen=True)
class Share:
    """What a rank reads of a part: its pieces in reading order, the shuffle of their windows, and
    how many windows the segment has assigned to the rank before.
    """

    pieces: Pieces
    shuffle: Shuffle
    before: int


class PassSchedule:
    """The schedule of one segment. file_of_episode, windows: int64 [E], of each episode. rest: what
    the segment before left of its pass (None: the whole of `first_pass`).
    """

    def __init__(
        self,
        file_of_episode: np.ndarray,
        windows: np.ndarray,
        seed: int,
        segment: Segment,
        first_pass: int = 0,
        rest: Pieces | None = None,
        number: int = 0,
    ) -> None:
        self._table = (file_of_episode, windows)
        self._total = int(windows.sum())
        self.seed, self.segment, self.number = seed, segment, number
        self.first_pass, self.rest = first_pass, rest
        self._rows: dict[int, Pieces] = {}

    @classmethod
    def over(
        cls,
        file_of_episode: np.ndarray,
        windows: np.ndarray,
        seed: int,
        first_pass: int,
        segments: Sequence[tuple[Segment, int]],
    ) -> PassSchedule:
        """Return the schedule of the last of `segments`: pairs of a segment and the batches that
        each rank took in it.
        """
        (segment, batches), *later = segments
        schedule = cls(file_of_episode, windows, seed, segment, first_pass)
        for segment, batches_of_next in later:
            schedule, batches = schedule.followed_by(segment, batches), batches_of_next
        return schedule

    def windows_before(self, part: int) -> int:
        """Return how many windows the segment has assigned to all ranks before `part`."""
        first = self._total if self.rest is None else self.rest.windows
        return 0 if part == 0 else first + (part - 1) * self._total

    def batches_before(self, part: int) -> int:
        """Return how many full batches each rank has taken in this segment when `part` begins."""
        return self.windows_before(part) // (self.segment.world_size * self.segment.batch_size)

    def batches_in(self, part: int) -> int:
        """Return how many full batches every rank takes in `part`."""
        return self.batches_before(part + 1) - self.batches_before(part)

    def part_of(self, batches: int) -> int:
        """Return the part of the next batch, after `batches` of each rank."""
        part = 0
        wanted = (batches + 1) * self.segment.world_size * self.segment.batch_size
        beyond = wanted - self.windows_before(1)
        if beyond > 0:
            part = -(-beyond // self._total)
        return part

    def row(self, part: int) -> Pieces:
        """Return all windows of `part`, which the ranks share."""
        if part not in self._rows:
            if part == 0 and self.rest is not None:
                row = self.rest
            else:
                files, windows = self._table
                number = self.first_pass + part
                row = pass_row(windows, pass_order(files, self.seed, number), number)
            self._rows = {**dict(list(self._rows.items())[-1:]), part: row}
        return self._rows[part]

    def share(self, part: int, rank: int) -> Share:
        """Return what `rank` reads of `part`, disjoint over ranks, in another random order of
        records on each, so that successive windows are not neighbours. Pieces of one record stay
        together.
        """
        world, drawn = self.segment.world_size, self.first_pass + part
        before = self.windows_before(part)
        pieces = self.row(part).cut(*stretch(before, self.windows_before(part + 1), rank, world))
        records = int(pieces.record[-1]) + 1 if len(pieces.record) else 0
        order = permutation(records, self.seed, drawn, PIECE_ORDER, rank, self.number)
        mixed = np.argsort(np.argsort(order)[pieces.record], kind="stable")
        shuffle = Shuffle(
            pieces.windows, self.segment.buffer, self.seed, drawn, SHUFFLE, rank, self.number
        )
        return Share(pieces.select(mixed), shuffle, windows_of_rank(before, rank, world))

    def position(self, rank: int, batches: int) -> tuple[int, int]:
        """Return the part that `rank` takes windows of after `batches`, and how many of that part
        it has taken.
        """
        count, world = batches * self.segment.batch_size, self.segment.world_size
        part = self.part_of(batches)
        while windows_of_rank(self.windows_before(part), rank, world) > count:
            part -= 1  # this rank has not yet taken the end of the part before
        return part, count - windows_of_rank(self.windows_before(part), rank, world)

    def remaining(self, batches: int) -> Pieces:
        """Return what no rank has taken of the current pass after `batches`."""
        last, rest = self.part_of(batches), []
        for rank in range(self.segment.world_size):
            part, count = self.position(rank, batches)
            while part <= last:
                share = self.share(part, rank)
                waiting, then = share.shuffle.waiting(count)
                rest += [share.pieces.at(waiting), share.pieces.cut(then, share.pieces.windows)]
                part, count = part + 1, 0
        return self._in_order(joined(rest))

    def followed_by(self, segment: Segment, batches: int) -> PassSchedule:
        """Return the schedule of the next segment, after `batches` of each rank in this one."""
        return PassSchedule(
            *self._table,
            self.seed,
            segment,
            self.first_pass + self.part_of(batches),
            self.remaining(batches),
            self.number + 1,
        )

    def _in_order(self, pieces: Pieces) -> Pieces:
        """Return the pieces in the order of their passes; adjacent ones are joined."""
        rank_in_pass = np.zeros(len(pieces.episode), np.int64)
        for number in np.unique(pieces.number):
            order = pass_order(self._table[0], self.seed, int(number))
            of_pass = pieces.number == number
            rank_in_pass[of_pass] = np.argsort(order)[pieces.episode[of_pass]]
        pieces = pieces.select(np.lexsort((pieces.start, rank_in_pass, pieces.number)))
        follows = (
            (np.diff(pieces.episode) == 0)
            & (np.diff(pieces.number) == 0)
            & (pieces.start[1:] == pieces.stop[:-1])
        )
        first = np.flatnonzero(np.append(True, ~follows))
        last = np.append(first[1:], len(pieces.episode)) - 1
        return Pieces(
            pieces.episode[first], pieces.start[first], pieces.stop[last], pieces.number[first]
        )
