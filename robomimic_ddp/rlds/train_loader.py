"""The train loader: one rank's endless stream of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.loader import RLDSLoader
from robomimic_ddp.rlds.partition import batches_in_pass, pass_order
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
        self._pipeline = build(dataset.recipe, self._plan_of, None, reading, self._counters)
        self._iterator: Any = None

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
