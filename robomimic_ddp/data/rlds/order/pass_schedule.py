"""The course of all ranks through a data set: pass after pass, over changes of ranks and batch.

A leg is a stretch of the run with one number of ranks, one batch and one shuffle buffer. It
consists of parts: part k is pass `first_pass + k`. Where a leg follows another, its part 0 is what
that one has left of its pass, cut anew over the new ranks; what waited from the pass before belongs
to it. Everything follows from the legs: a position is a handful of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robomimic_ddp.data.rlds.order.partition import (
    PIECE_ORDER,
    SHUFFLE,
    Pieces,
    joined,
    pass_order,
    permutation,
    stretch,
    whole_row,
    windows_given,
)
from robomimic_ddp.data.rlds.order.shuffle import Shuffle


@dataclass(frozen=True)
class Leg:
    """`world_size` ranks, batches of `batch_size` and a shuffle buffer of `buffer` windows."""

    world_size: int
    batch_size: int
    buffer: int


@dataclass(frozen=True)
class Share:
    """What a rank reads of one part: its pieces in reading order, the shuffle of their windows, and
    how many windows the leg has given to the rank before.
    """

    pieces: Pieces
    shuffle: Shuffle
    before: int


class Course:
    """One leg, and what it begins with.

    file_of_episode, windows: int64 [E], the table of episodes and what each gives to every pass.
    rest: what the leg before has left (None: the whole of `first_pass`).
    """

    def __init__(
        self,
        file_of_episode: np.ndarray,
        windows: np.ndarray,
        seed: int,
        leg: Leg,
        first_pass: int = 0,
        rest: Pieces | None = None,
        number: int = 0,
    ) -> None:
        self._table = (file_of_episode, windows)
        self._total = int(windows.sum())
        self.seed, self.leg, self.number = seed, leg, number
        self.first_pass, self.rest = first_pass, rest
        self._rows: dict[int, Pieces] = {}

    @classmethod
    def over(
        cls,
        file_of_episode: np.ndarray,
        windows: np.ndarray,
        seed: int,
        first_pass: int,
        legs: Sequence[tuple[Leg, int]],
    ) -> Course:
        """The last of `legs`: each with the batches that every rank took in it."""
        (leg, batches), *later = legs
        course = cls(file_of_episode, windows, seed, leg, first_pass)
        for leg, more in later:
            course, batches = course.followed_by(leg, batches), more
        return course

    def given_before(self, part: int) -> int:
        """Windows that the leg has given to all ranks before `part`."""
        first = self._total if self.rest is None else self.rest.windows
        return 0 if part == 0 else first + (part - 1) * self._total

    def batches_before(self, part: int) -> int:
        """Full batches that every rank has taken in this leg when `part` begins."""
        return self.given_before(part) // (self.leg.world_size * self.leg.batch_size)

    def batches_in(self, part: int) -> int:
        """Full batches that every rank takes in `part`."""
        return self.batches_before(part + 1) - self.batches_before(part)

    def part_of(self, batches: int) -> int:
        """The part that the next batch belongs to, when every rank has taken `batches`."""
        part = 0
        wanted = (batches + 1) * self.leg.world_size * self.leg.batch_size
        beyond = wanted - self.given_before(1)
        if beyond > 0:
            part = -(-beyond // self._total)
        return part

    def row(self, part: int) -> Pieces:
        """All windows of `part`, which the ranks share."""
        if part not in self._rows:
            if part == 0 and self.rest is not None:
                made = self.rest
            else:
                files, windows = self._table
                number = self.first_pass + part
                made = whole_row(windows, pass_order(files, self.seed, number), number)
            self._rows = {**dict(list(self._rows.items())[-1:]), part: made}
        return self._rows[part]

    def share(self, part: int, rank: int) -> Share:
        """What `rank` reads of `part`; over ranks disjoint, and together all of it.

        The records come in an order of the rank's own, so that neighbours in time are not
        neighbours in a file. Pieces of one record, of which a leg before has taken some windows,
        stay together: it is read once.
        """
        world, drawn = self.leg.world_size, self.first_pass + part
        before = self.given_before(part)
        own = self.row(part).cut(*stretch(before, self.given_before(part + 1), rank, world))
        records = int(own.record[-1]) + 1 if len(own.record) else 0
        order = permutation(records, self.seed, drawn, PIECE_ORDER, rank, self.number)
        mixed = np.argsort(np.argsort(order)[own.record], kind="stable")
        shuffle = Shuffle(
            own.windows, self.leg.buffer, self.seed, drawn, SHUFFLE, rank, self.number
        )
        return Share(own.taken(mixed), shuffle, windows_given(before, rank, world))

    def place(self, rank: int, batches: int) -> tuple[int, int]:
        """The part whose windows `rank` takes next after `batches`, and how many of that part it
        has taken.
        """
        taken, world = batches * self.leg.batch_size, self.leg.world_size
        part = self.part_of(batches)
        while windows_given(self.given_before(part), rank, world) > taken:
            part -= 1  # the end of the part before waits in this rank's row
        return part, taken - windows_given(self.given_before(part), rank, world)

    def remaining(self, batches: int) -> Pieces:
        """What no rank has been given up to the end of the present pass, after `batches`."""
        last, left = self.part_of(batches), []
        for rank in range(self.leg.world_size):
            part, taken = self.place(rank, batches)
            while part <= last:
                share = self.share(part, rank)
                waiting, then = share.shuffle.waiting(taken)
                left += [share.pieces.at(waiting), share.pieces.cut(then, share.pieces.windows)]
                part, taken = part + 1, 0
        return self._in_order(joined(left))

    def followed_by(self, leg: Leg, batches: int) -> Course:
        """The leg after this one, which ends after `batches` of every rank."""
        return Course(
            *self._table,
            self.seed,
            leg,
            self.first_pass + self.part_of(batches),
            self.remaining(batches),
            self.number + 1,
        )

    def _in_order(self, pieces: Pieces) -> Pieces:
        """The pieces in the order of their passes: files stay together, neighbours are joined."""
        place = np.zeros(len(pieces.episode), np.int64)
        for number in np.unique(pieces.number):
            order = pass_order(self._table[0], self.seed, int(number))
            of_pass = pieces.number == number
            place[of_pass] = np.argsort(order)[pieces.episode[of_pass]]
        pieces = pieces.taken(np.lexsort((pieces.start, place, pieces.number)))
        pieces = pieces.taken(np.flatnonzero(pieces.stop > pieces.start))
        if not len(pieces.episode):
            return pieces
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
