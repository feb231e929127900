"""A rank's share of validation windows: every window once over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.loaders.base import RLDSLoader
from robomimic_ddp.data.rlds.pipeline.settings import Batching
from robomimic_ddp.data.rlds.window_table import the_plan


class RLDSValidLoader(RLDSLoader):
    """One rank's share of `windows` validation windows, spread evenly over the episodes, shuffled:
    disjoint, the same at every `iter`. A rank may have none.
    """

    _parts = 1

    def __init__(
        self, dataset: RLDSDataset, rank: int, world_size: int, batching: Batching, windows: int
    ):
        self._plan = dataset.table.valid_plan(rank, world_size, windows, batching.shuffle_buffer)
        self.windows = self._plan.pieces.windows
        self._plan_of = partial(the_plan, self._plan)
        super().__init__(dataset, rank, world_size, batching.for_windows(self.windows))

    def __len__(self) -> int:
        """Return the batches of this rank, the short last one included."""
        return -(-self.windows // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.windows:
            return
        stream = self._open()
        try:
            for _ in range(len(self)):
                yield self._next(stream)
        finally:
            stream.close()

    def _start(self) -> tuple[int, int]:
        return 0, 0
