"""The windows of a dataset's episodes, and what each rank reads of them in each pass.

The process that reads for a rank needs nothing else: it can be pickled, and needs no torch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from robomimic_ddp.data.rlds.order import partition
from robomimic_ddp.data.rlds.order.pass_schedule import PassSchedule
from robomimic_ddp.data.rlds.order.read_plan import PassPlan
from robomimic_ddp.data.rlds.order.shuffle_plan import Shuffle
from robomimic_ddp.data.rlds.order.windows import pick_offsets


@dataclass(frozen=True)
class WindowTable:
    """int64 [E] each. file, offset: an episode's record; counts: its windows; per_pass: how many of
    them come in a pass; base: the dataset's number of its window 0.
    """

    file: np.ndarray
    offset: np.ndarray
    counts: np.ndarray
    per_pass: np.ndarray
    base: np.ndarray

    def part_plan(self, schedule: PassSchedule, part: int, rank: int) -> PassPlan:
        """Return what `rank` reads in `part` of `schedule`: a pure function of both."""
        share = schedule.share(part, rank)
        return self._plan(share.pieces, self.per_pass, share.shuffle, schedule.seed, share.before)

    def valid_plan(self, rank: int, world_size: int, wanted: int, buffer: int) -> PassPlan:
        """Return the rank's share of `wanted` windows, spread evenly over the episodes in file
        order; shuffled by a buffer of `buffer` windows.
        """
        ends, total = np.cumsum(self.counts), int(self.counts.sum())
        per_pass = ends * wanted // total - (ends - self.counts) * wanted // total
        row = partition.pass_row(per_pass, np.arange(len(self.file)), 0)
        pieces = row.cut(*partition.stretch(0, wanted, rank, world_size))
        buffer = max(1, min(buffer, pieces.windows))
        return self._plan(pieces, per_pass, Shuffle(pieces.windows, buffer, 1, rank), None, 0)

    def _plan(
        self,
        pieces: partition.Pieces,
        per_pass: np.ndarray,
        shuffle: Shuffle,
        seed: int | None,
        first_key: int,
    ) -> PassPlan:
        chosen = pieces.episode
        pick = self.counts[chosen] // 2  # the middle of each stretch of windows
        for number in np.unique(pieces.number) if seed is not None else ():
            of_pass = pieces.number == number
            pick[of_pass] = pick_offsets(self.counts, seed, int(number))[chosen[of_pass]]
        return PassPlan(
            pieces,
            self.file[chosen],
            self.offset[chosen],
            per_pass[chosen],
            self.counts[chosen],
            pick,
            self.base[chosen],
            shuffle,
            first_key,
        )

    def digest(self) -> str:
        """Return a hex digest of the table, which saved positions refer to."""
        total = hashlib.blake2b(digest_size=8)
        for column in (self.file, self.offset, self.counts, self.per_pass):
            total.update(np.asarray(column, np.int64).tobytes())
        return total.hexdigest()


class PassPlans:
    """The plans of `rank` by the number of the part of `schedule`; the last two are kept."""

    def __init__(self, table: WindowTable, schedule: PassSchedule, rank: int) -> None:
        self._of = (table, schedule, rank)
        self._plans: dict[int, PassPlan] = {}

    def __call__(self, part: int) -> PassPlan:
        table, schedule, rank = self._of
        plan = self._plans.get(part)
        if plan is None:
            plan = table.part_plan(schedule, part, rank)
            self._plans = {**dict([*self._plans.items()][-1:]), part: plan}
        return plan


def the_plan(plan: PassPlan, part: int) -> PassPlan:
    """Return `plan`, that of the only part; a `partial` of this can be pickled."""
    return plan
