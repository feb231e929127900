"""The validation loader: every window once over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.loaders.base import RLDSLoader
from robomimic_ddp.data.rlds.pipeline.settings import Batching
from robomimic_ddp.data.rlds.window_table import the_plan


class Limited:
    """A validation loader of which the host uses only some batches."""

    dataset: Any
    batch_size: int

    @cached_property
    def _limited(self) -> dict[int, Any]:
        return {}

    def limited(self, num_steps: int | None) -> Any:
        """Return the loader of min(num_steps x train.batch_size, all) windows over all ranks: the
        same windows for every world size. None: all. A mixture's are spread over its datasets by
        size.
        """
        if num_steps is None:
            return self
        batch_size = self.dataset.options.host_batch_size or self.batch_size
        return self.limited_to(num_steps * batch_size)

    def limited_to(self, wanted: int) -> Any:
        """Return the loader of min(`wanted`, all) windows over all ranks."""
        if wanted not in self._limited:
            self._limited[wanted] = self._of(wanted)
        return self._limited[wanted]

    def _of(self, wanted: int) -> Any:
        raise NotImplementedError


class RLDSValidLoader(Limited, RLDSLoader):
    """One rank's share of the validation windows, the same at every `iter`: disjoint, of all
    windows or of `most_windows` spread evenly over the episodes, shuffled. A rank may have none.
    """

    _parts = 1

    def __init__(
        self,
        dataset: RLDSDataset,
        rank: int,
        world_size: int,
        batching: Batching,
        most_windows: int | None = None,
    ):
        self._plan = dataset.table.valid_plan(
            rank, world_size, most_windows, batching.shuffle_buffer
        )
        self.windows = self._plan.pieces.windows
        self._plan_of = partial(the_plan, self._plan)
        super().__init__(dataset, rank, world_size, batching.for_windows(self.windows))

    def _of(self, wanted: int) -> RLDSValidLoader:
        place = (self.rank, self.world_size, self.batching)
        return RLDSValidLoader(self.dataset, *place, wanted)

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
