"""The train loader of one rank: the host's DataLoader, whose position can be restored."""

from __future__ import annotations

import hashlib
import weakref
import zlib
from array import array
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.data.sampling.nested_loaders import Wrapped
from robomimic_ddp.data.sampling.pass_order import another_order, is_stateless
from robomimic_ddp.distributed import rng

_WHOLE = -1


class _Recorded(Wrapped):
    """The host's sampler; records how far each iteration went, and the indices of the newest."""

    wraps = ("sampler",)

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.lengths: list[int] = []
        """Number of indices of each iteration; `_WHOLE` for a complete one."""
        self.indices = array("q")
        self.random_state: dict[str, Any] | None = None
        """State of the streams when the newest iteration began, which is when its first index is
        asked for: of several loaders, after all of their iterations were made.
        """
        self.start_from: dict[str, Any] | None = None
        """State of the streams in which the next iteration begins; None: as they are."""

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        number = len(self.lengths)
        self.lengths.append(0)
        self.indices = indices = array("q")
        if self.start_from is not None:
            rng.restore(self.start_from)
        self.random_state = rng.capture()
        lengths = self.lengths
        for index in self.sampler:
            indices.append(index if type(index) is int else _number(index))
            lengths[number] += 1
            yield index
        lengths[number] = _WHOLE

    def digest(self, count: int) -> str:
        """Return a digest of the first `count` indices of the newest iteration."""
        return hashlib.sha256(self.indices[:count].tobytes()).hexdigest()

    def history(self, iterations: int | None = None) -> list[int] | None:
        """Return what `bring_to` needs to repeat the first `iterations` (None: all), or None."""
        return None if is_stateless(self.sampler) else self.lengths[:iterations]

    def bring_to(self, lengths: list[int]) -> None:
        """Iterate the sampler for iterations of these `lengths`; restore the streams."""
        with rng.kept():
            for count in lengths[len(self.lengths) :]:
                for _ in self if count == _WHOLE else islice(self, count):
                    pass


def _number(index: Any) -> int:
    """Return an index as a number; hosts' samplers may yield other types."""
    try:
        return int(index)
    except (TypeError, ValueError):
        return zlib.crc32(repr(index).encode())


def _generator_state(loader: Any) -> Any:
    """Return the state of the host's generator for the DataLoader, or None. Each iteration draws
    the workers' seed from it, and a sampler of torch's own its order.
    """
    generator = getattr(loader, "generator", None)
    return None if generator is None else generator.get_state()


def _restore_generator(loader: Any, position: dict[str, Any]) -> None:
    generator, state = getattr(loader, "generator", None), position["generator"]
    if generator is not None and state is not None:
        generator.set_state(state)


class ReplayedLoader(Wrapped):
    """Iterate the host's DataLoader `loader`, whose sampler draws from the global random streams.

    To restore a position, the streams are set back, a new iteration starts, and delivered batches
    are skipped. A stateful sampler is first iterated as often as it was.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._last: weakref.ref | None = None
        self._next: dict[str, Any] | None = None
        self._recorded: _Recorded | None = None
        self._has_workers = False
        batches = getattr(loader, "batch_sampler", None)
        stream = isinstance(getattr(loader, "dataset", None), IterableDataset)
        if type(batches) is BatchSampler and not stream:  # a subclass may do anything
            self._recorded = batches.sampler = _Recorded(batches.sampler)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        position, self._next = self._next, None
        iteration = _Iteration(self.loader, self._recorded, position, self._has_workers)
        self._has_workers = getattr(self.loader, "persistent_workers", False)
        self._last = weakref.ref(iteration)
        return iteration

    def drop_iterator(self) -> None:
        """The host has dropped its iterator (see ShardedLoader)."""
        self._last = None

    def position(self) -> dict[str, Any]:
        """Return what `seek` needs. Between iterations the saved random streams suffice."""
        live, recorded = self._live(), self._recorded
        if self._next is not None:
            return self._next
        if live is None or live.over:
            history = None if recorded is None else recorded.history()
            between = {"kind": "replay", "batches": None, "iterations": history}
            between["has_workers"] = self._has_workers
            return {**between, "generator": _generator_state(self.loader)}
        return {
            "kind": "replay",
            "batches": live.batches,
            "batch_size": self._batch_size(),
            "random": live.random_state,
            "sampler_random": live.sampler_random(),
            "generator": live.generator_state,
            "has_workers": live.has_workers,
            "iterations": None if recorded is None else recorded.history(live.before),
            "order": live.order_digest(),
        }

    def batches_left(self) -> int:
        """Return the batches left in the current iteration; all before it starts."""
        live = self._live()
        if self._next is not None:
            return len(self) - self._next["batches"]
        return len(self) - (0 if live is None or live.over else live.batches)

    def _batch_size(self) -> int | None:
        return getattr(self.loader, "batch_size", None)

    def seek(self, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
        """Resume at the `position` of a run on one rank; return a line for the user. Raises
        CheckpointError, here or when the next iteration starts, if the order of the pass differs.
        """
        if position is None or position.get("kind") != "replay":
            return "data: the host's own sampler begins a new pass"
        batches, history = position["batches"], position["iterations"]
        changed = position.get("batch_size", self._batch_size()) != self._batch_size()
        if self._recorded is not None and history is not None:
            part = [batches * position["batch_size"]] if changed and batches else []
            self._recorded.bring_to(history + part)
        if changed:
            return (
                "data: the host's own sampler begins a new pass, since the batch size has changed"
            )
        self._has_workers = position["has_workers"]
        if batches is None:
            _restore_generator(self.loader, position)
            return "data: the host's sampler resumes with its next pass"
        live = self._live()
        if live is None or live.over:
            self._next = position
        else:
            live.seek(position)  # started by the host before its epoch loop
        return f"data: the pass resumes after {batches} of {len(self)} batches"

    def _live(self) -> _Iteration | None:
        return None if self._last is None else self._last()


class _Iteration:
    """One iteration, alive as long as it is referenced. `position`: where it resumes, or None;
    `has_workers`: those of an earlier one are alive, for which torch draws no seed.
    """

    def __init__(
        self,
        loader: Any,
        recorded: _Recorded | None,
        position: dict[str, Any] | None,
        has_workers: bool,
    ) -> None:
        self.loader, self.recorded, self.has_workers = loader, recorded, has_workers
        self.over = False
        self.batches = 0
        self.before = -1
        """Number of iterations of the host's sampler before this one, once it has begun."""
        if position is None:
            self._begin()
        else:
            self.seek(position)

    def __iter__(self) -> _Iteration:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self.over = True
            raise
        self.batches += 1
        return batch

    def sampler_random(self) -> dict[str, Any] | None:
        """Return the state of the streams when the sampler began; None before that."""
        begun = self.recorded is not None and len(self.recorded.lengths) > self.before
        return self.recorded.random_state if begun else None

    def order_digest(self) -> str | None:
        """Return a digest of the indices of the delivered batches."""
        if self.recorded is None:
            return None
        return self.recorded.digest(self.batches * self.loader.batch_size)

    def seek(self, position: dict[str, Any]) -> None:
        """Start as the saved iteration did, and skip the delivered batches. The random streams
        are restored: the saved ones are those after its start. Raises CheckpointError.
        """
        self.has_workers = position["has_workers"]
        with rng.kept():
            rng.restore(position["random"])
            if self.recorded is not None:
                self.recorded.start_from = position["sampler_random"]
            if self._is_begun_at(position):
                self.random_state = position["random"]
            else:
                _restore_generator(self.loader, position)
                self._begin()
            for _ in islice(self._iterator, position["batches"]):
                pass
        if self.recorded is not None:
            self.recorded.start_from = None
        self.batches, self.over = position["batches"], False
        if position["order"] not in (None, self.order_digest()):
            raise another_order("the pass", self.recorded.sampler)

    def _begin(self) -> None:
        self.random_state = rng.capture()
        self.generator_state = _generator_state(self.loader)
        if self.recorded is not None:
            self.before = len(self.recorded.lengths)
        # Workers that an interrupted process had are made here: their seed costs no random number.
        other = swapped(self.loader, "generator", torch.Generator())
        with other if self.has_workers else nullcontext():
            self._iterator = iter(self.loader)

    def _is_begun_at(self, position: dict[str, Any]) -> bool:
        """Return whether the host has begun this iteration already, of a stateful sampler."""
        recorded, history = self.recorded, position["iterations"]
        if recorded is None or history is None or self.batches:
            return False
        return len(history) == self.before == len(recorded.lengths) - 1
