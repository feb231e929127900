"""The validation loader: every window once over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from robomimic_ddp.rlds.loader import RLDSLoader
from robomimic_ddp.rlds.pipeline import FrameCounters, build
from robomimic_ddp.rlds.plans import Reading
from robomimic_ddp.rlds.stream import Stream

if TYPE_CHECKING:
    from robomimic_ddp.rlds.dataset import RLDSDataset


class RLDSValidLoader(RLDSLoader):
    """One rank's part of the validation windows, the same at every `iter`.

    The last batch may be short. Over ranks every window comes once: all of them, or
    `most_windows` spread evenly over the episodes. A rank may have none. Windows come mixed, so
    that the first batches are a fair sample.
    """

    def __init__(
        self,
        dataset: RLDSDataset,
        rank: int,
        world_size: int,
        reading: Reading,
        most_windows: int | None = None,
    ):
        self._plan = dataset.valid_plan(rank, world_size, most_windows, reading.shuffle_buffer)
        self.windows = self._plan.pieces.windows
        super().__init__(dataset, rank, world_size, reading.for_windows(self.windows))
        self._pipeline = build(
            dataset.recipe, lambda _: self._plan, 1, self.reading, self._counters
        )
        self._limited: dict[int, RLDSValidLoader] = {}

    def limited(self, num_steps: int | None) -> RLDSValidLoader:
        """The loader of min(num_steps x configured batch size, all) windows over all ranks.

        None: of all windows. The configured batch size is the host's train.batch_size, so that
        `num_steps` selects the same number of windows at every world size.
        """
        if num_steps is None:
            return self
        return self.limited_to(
            num_steps * (self.dataset.options.host_batch_size or self.batch_size)
        )

    def limited_to(self, wanted: int) -> RLDSValidLoader:
        """The loader of min(`wanted`, all) windows over all ranks."""
        if wanted not in self._limited:
            self._limited[wanted] = RLDSValidLoader(
                self.dataset, self.rank, self.world_size, self.reading, wanted
            )
        return self._limited[wanted]

    def __len__(self) -> int:
        """Batches of this rank, the short last one included."""
        return -(-self.windows // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.windows:
            return
        stream = Stream(self._pipeline)
        for _ in range(len(self)):
            yield self._next(stream)

    def _one_by_one(self, reading: Reading, counters: FrameCounters) -> Any:
        return build(self.dataset.recipe, lambda _: self._plan, 1, reading, counters)

    def _suspects(self) -> Iterator[int]:
        yield from self.dataset.rows[np.unique(self._plan.pieces.episode)]

    def index_stream_digest(self) -> str:
        """Hex digest of which windows this rank reads."""
        return self._plan.digest()
