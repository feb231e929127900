"""The train loader: one rank's endless stream of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.loader import RLDSLoader
from robomimic_ddp.rlds.partition import (
    batches_in_pass,
    batches_through,
    pass_order,
    windows_before,
)
from robomimic_ddp.rlds.pipeline import build
from robomimic_ddp.rlds.plans import PassPlan, Reading

if TYPE_CHECKING:
    from robomimic_ddp.rlds.dataset import RLDSDataset


class RLDSTrainLoader(RLDSLoader):
    """One rank's endless stream, in passes. `iter` continues it and ends with the pass.

    Every rank takes the same number of full batches in a pass (`len`); windows left over open the
    next pass. Hosts iterate anew at every epoch, whatever its length: nothing is lost by that.
    """

    each_sample_once = True
    """No window comes twice in a pass."""

    def __init__(
        self, dataset: RLDSDataset, rank: int, world_size: int, reading: Reading, seed: int
    ):
        reading = reading.for_windows(len(dataset) // world_size + 1)
        super().__init__(dataset, rank, world_size, reading)
        self._require_enough()
        self._seed = seed
        self.pass_number = 0
        """The pass that the next batch belongs to."""
        self._delivered_in_pass = 0
        self._start_at(0, 0)

    def _start_at(self, first_pass: int, passed_over: int) -> None:
        self._pipeline = build(
            self.dataset.recipe,
            self._plan_of,
            None,
            self.reading,
            self._counters,
            first_pass,
            passed_over,
        )
        self._iterator: Any = None

    def position(self) -> dict[str, Any]:
        """What `go_to` needs: the same on every rank."""
        return {
            "kind": "windows",
            "pass": self.pass_number,
            "batches": self._delivered_in_pass,
            "batch_size": self.batch_size,
        }

    def let_go(self) -> None:
        """Nothing: the stream goes on, whoever iterates over it."""

    def go_to(self, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
        """Continues at a `position` of a run with `world_size` ranks; says what that means.

        The order is a pure function of (seed, pass, place): windows of the present pass that were
        delivered are read again, but not decoded. With another number of ranks, or another batch,
        the stretches are others, and the pass begins anew.
        """
        if position is None or position.get("kind") != "windows":
            return "data: the first pass begins"
        self.pass_number, self._delivered_in_pass = position["pass"], 0
        if (position["batch_size"], world_size) != (self.batch_size, self.world_size):
            self._start_at(self.pass_number, 0)
            return (
                f"data: pass {self.pass_number} begins anew, since ranks or batch have changed: "
                f"{position['batches']} batches of a rank are read again"
            )
        self._delivered_in_pass = position["batches"]
        batches = batches_through(
            len(self.dataset), self.pass_number - 1, self.batch_size, self.world_size
        )
        taken = (batches + self._delivered_in_pass) * self.batch_size
        first = self.pass_number
        while windows_before(len(self.dataset), first, self.rank, self.world_size) > taken:
            first -= 1  # the end of the pass before waits in this rank's row
        before = windows_before(len(self.dataset), first, self.rank, self.world_size)
        self._start_at(first, taken - before)
        return f"data: pass {self.pass_number} goes on after {self._delivered_in_pass} batches"

    def _plan_of(self, pass_number: int) -> PassPlan:
        return self.dataset.pass_plan(self._seed, pass_number, self.rank, self.world_size)

    def _require_enough(self) -> None:
        needed = self.batch_size * self.world_size
        if len(self.dataset) < needed:
            raise DataError(
                f"{self.dataset.source.folder} gives {len(self.dataset)} windows to a pass, a step "
                f"needs {needed} ({self.batch_size} on each of {self.world_size} ranks): some rank "
                "would have no batch. Use a smaller batch, fewer ranks, or more data "
                "(train.success_only, train.skip_unlabeled and train.subsample_length take some "
                "away)."
            ).on_all_ranks()

    def __len__(self) -> int:
        """Full batches of every rank in the current pass."""
        return batches_in_pass(
            len(self.dataset), self.pass_number, self.batch_size, self.world_size
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        this_pass = self.pass_number
        if self._iterator is None:
            self._iterator = iter(self._pipeline)
        while self.pass_number == this_pass:
            batch = self._next(self._iterator)
            self._delivered_in_pass += 1
            if self._delivered_in_pass == len(self):
                self.pass_number, self._delivered_in_pass = this_pass + 1, 0
            yield batch

    def order_digest(self) -> str:
        """Hex digest of what decides who reads what in the current pass: equal on every rank."""
        dataset = self.dataset
        order = pass_order(dataset.index.file[dataset.rows], self._seed, self.pass_number)
        decided = (self._seed, self.pass_number, self.world_size, len(dataset))
        return hashlib.sha256(order.tobytes() + repr(decided).encode()).hexdigest()

    def index_stream_digest(self) -> str:
        """Hex digest of what this rank reads in the current pass: differs between ranks."""
        return self._plan_of(self.pass_number).digest()

    def telling_digest(self) -> str:
        """`index_stream_digest`: shards are disjoint, so two ranks' never agree."""
        return self.index_stream_digest()

    def close(self) -> None:
        """Stops reading ahead and frees the buffers; the stream cannot be continued."""
        self._iterator = self._pipeline = None
