"""Loaders around other loaders: a stream that is already split over ranks, and several as one.
What such loaders, and mixtures, read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Wrapped:
    """Attributes that it lacks are those of its attributes `wraps`, the first that has it."""

    wraps: tuple[str, ...] = ("loader",)

    def __getattr__(self, name: str) -> Any:
        *others, last = self.wraps
        if name in self.wraps:  # unpickling, or a failed constructor
            raise AttributeError(name)
        for other in others:
            if hasattr(getattr(self, other), name):
                return getattr(getattr(self, other), name)
        return getattr(getattr(self, last), name)


class Batches:
    """An iterator with the length of a whole pass, as that of torch's DataLoader has."""

    def __init__(self, batches: Iterator[Any], loader: Any) -> None:
        self._batches, self._loader = batches, loader

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._loader)


class StreamLoader(Wrapped):
    """The train loader of an IterableDataset: batches of this rank's stream.

    Ranks' streams may have unequal lengths: hosts that take a fixed number of steps per epoch, and
    restart a stream that has ended, stay in step.

    samples_delivered: samples of this rank delivered so far, without prefetched ones.
    """

    def __init__(self, loader: Any, world_size: int) -> None:
        self.loader = loader
        self.samples_delivered = 0
        self._world_size = world_size

    def __len__(self) -> int:
        """Return the global batches in the dataset's length, which is that of the whole data."""
        return len(self.loader.dataset) // (self.loader.batch_size * self._world_size)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:  # drop_last: every batch is full
            self.samples_delivered += self.loader.batch_size
            yield batch


class JoinedLoaders(Wrapped):
    """All train loaders of a host that iterates over several, and trains a step on a batch of each.

    Behaves as the first, and saves and restores the position of each, by the order of their making.
    """

    def __init__(self, before: Any, loader: Any) -> None:
        """Add `loader` to `before`, which is a loader or a `JoinedLoaders`."""
        self.loaders = [*getattr(before, "loaders", [before]), loader]
        self.loader = self.loaders[0]

    def __len__(self) -> int:
        return len(self.loader)

    def drop_iterator(self) -> None:
        """Call `drop_iterator` of each loader that has it; see `ShardedLoader.drop_iterator`."""
        for loader in self.loaders:
            getattr(loader, "drop_iterator", lambda: None)()

    def position(self) -> dict[str, Any]:
        """Return the position of the first loader, with those of the others under "others"."""
        positions = [getattr(loader, "position", lambda: None)() for loader in self.loaders]
        return {**(positions[0] or {}), "others": positions[1:]}

    def seek(self, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
        """Move each loader to its position. One without a saved position starts a new pass."""
        positions = [position, *(position or {}).get("others", [])]
        positions += [None] * len(self.loaders)  # zip ends with the loaders
        return "\n".join(
            seek(loader, part, world_size, epoch) for loader, part in zip(self.loaders, positions)
        )


def seek(loader: Any, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
    """Move a train loader to a saved position, and return a line for the user. A stream that the
    host reads itself has none.
    """
    if not hasattr(loader, "seek"):
        return "data: the host's own pipeline starts over (its position cannot be restored)"
    return loader.seek(position, world_size, epoch)


def datasets_of(loader: Any) -> list[Any]:
    """Return the datasets that `loader` reads, those of joined loaders and of mixtures one by one;
    [] if it has none.
    """
    datasets = [getattr(inner, "dataset", None) for inner in getattr(loader, "loaders", [loader])]
    mixtures = [dataset for dataset in datasets if dataset is not None]
    return [dataset for mixture in mixtures for dataset in getattr(mixture, "datasets", [mixture])]
