"""The train loader of an IterableDataset whose stream is already split over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class StreamLoader:
    """Batches of this rank's stream; other attributes are those of the DataLoader `loader`.

    Ranks' streams may have unequal lengths: hosts that take a fixed number of steps per epoch, and
    restart a stream that has ended, stay in step.

    samples_delivered: samples of this rank delivered so far, without prefetched ones.
    """

    def __init__(self, loader: Any, world_size: int) -> None:
        self.loader = loader
        self.samples_delivered = 0
        self._world_size = world_size

    def __len__(self) -> int:
        """Global batches in the dataset's length, which is that of the whole data."""
        return len(self.loader.dataset) // (self.loader.batch_size * self._world_size)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:  # drop_last: every batch is full
            self.samples_delivered += self.loader.batch_size
            yield batch

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # unpickling, or a failed constructor
            raise AttributeError(name)
        return getattr(self.loader, name)
