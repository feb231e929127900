"""The train loader of an IterableDataset whose stream was split over ranks before it got here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class StreamLoader:
    """Batches of this rank's stream; an iteration is whatever the stream gives.

    Attributes other than those here are those of the DataLoader `loader`. Streams may be of
    unequal lengths on the ranks: hosts that take a number of steps an epoch, and begin again where
    a stream ends, keep in step.

    samples_delivered: samples of this rank handed out so far, without prefetched ones.
    """

    def __init__(self, loader: Any, world_size: int) -> None:
        self.loader = loader
        self.samples_delivered = 0
        self._world_size = world_size

    def __len__(self) -> int:
        """Global batches in the length that the dataset states, which is that of the whole data."""
        return len(self.loader.dataset) // (self.loader.batch_size * self._world_size)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:  # drop_last: every batch is full
            self.samples_delivered += self.loader.batch_size
            yield batch

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not made yet: unpickling, or a failed constructor
            raise AttributeError(name)
        return getattr(self.loader, name)
