"""The train loader of one rank: the host's own DataLoader, whose place can be found again."""

from __future__ import annotations

import hashlib
import weakref
import zlib
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from robomimic_ddp.data.sampling.order import another_order, draws_anew
from robomimic_ddp.distributed import rng

_WHOLE = -1


class _Recorded:
    """The host's sampler; notes how far each iteration went, and the indices of the newest one."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.taken: list[int] = []
        """Indices that each iteration gave; `_WHOLE` for one that went to its end."""
        self.given = array("q")

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        number = len(self.taken)
        self.taken.append(0)
        self.given = given = array("q")
        for index in self.sampler:
            given.append(_number(index))
            self.taken[number] += 1
            yield index
        self.taken[number] = _WHOLE

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def digest(self, count: int) -> str:
        """Of the first `count` indices of the newest iteration."""
        return hashlib.sha256(self.given[:count].tobytes()).hexdigest()

    def history(self, iterations: int | None = None) -> list[int] | None:
        """What `bring_to` needs to find the first `iterations` (None: all) again; None for a
        sampler without a state of its own.
        """
        return None if draws_anew(self.sampler) else self.taken[:iterations]

    def bring_to(self, taken: list[int]) -> None:
        """Leaves the sampler as iterations of these lengths leave it, beginning with those that it
        has had. The global random streams stay where they are.
        """
        with rng.kept():
            for count in taken[len(self.taken) :]:
                for _ in self if count == _WHOLE else islice(self, count):
                    pass


def _number(index: Any) -> int:
    """An index as a number: hosts' samplers may give anything that their dataset takes."""
    try:
        return int(index)
    except (TypeError, ValueError):
        return zlib.crc32(repr(index).encode())


class ReplayedLoader:
    """Hands out what the host's DataLoader hands out, and remembers where its iteration began.

    The host's sampler draws from the global random streams when an iteration begins. To find a
    place inside that iteration again, the streams are set back to what they were then, a new one
    is begun, and the batches that were delivered are passed over. A sampler that keeps a state of
    its own is first iterated as often as it was. The DataLoader is `loader`; other attributes are
    its own.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._last: weakref.ref | None = None
        self._next: dict[str, Any] | None = None
        self._recorded: _Recorded | None = None
        batches = getattr(loader, "batch_sampler", None)
        stream = isinstance(getattr(loader, "dataset", None), IterableDataset)
        if type(batches) is BatchSampler and not stream:  # one of the host's own may do anything
            self._recorded = batches.sampler = _Recorded(batches.sampler)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        position, self._next = self._next, None
        iteration = _Iteration(self.loader, self._recorded, position)
        self._last = weakref.ref(iteration)
        return iteration

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not made yet: unpickling, or a failed constructor
            raise AttributeError(name)
        return getattr(self.loader, name)

    def let_go(self) -> None:
        """The host has let its iterator go: it will begin another one (see ShardedLoader)."""
        self._last = None

    def position(self) -> dict[str, Any]:
        """What `go_to` needs. Between iterations nothing but the random streams, which are saved
        beside.
        """
        live, recorded = self._live(), self._recorded
        if self._next is not None:
            return self._next
        if live is None or live.over:
            history = None if recorded is None else recorded.history()
            return {"kind": "replay", "batches": None, "iterations": history}
        return {
            "kind": "replay",
            "batches": live.batches,
            "batch_size": self._batch_size(),
            "random": live.random_state,
            "iterations": None if recorded is None else recorded.history(live.before),
            "order": live.order_digest(),
        }

    def batches_left(self) -> int:
        """Batches that the present iteration has still to give; before it begins all."""
        live = self._live()
        if self._next is not None:
            return len(self) - self._next["batches"]
        return len(self) - (0 if live is None or live.over else live.batches)

    def _batch_size(self) -> int | None:
        return getattr(self.loader, "batch_size", None)

    def go_to(self, position: dict[str, Any] | None, world_size: int, epoch: int) -> str:
        """Continues at the `position` of a run on one rank; says what that means. Raises
        CheckpointError, here or when the next iteration begins, where the pass has another order.
        """
        if position is None or position.get("kind") != "replay":
            return "data: the host's own sampler begins a new pass"
        batches, history = position["batches"], position.get("iterations")
        changed = position.get("batch_size", self._batch_size()) != self._batch_size()
        if self._recorded is not None and history is not None:
            part = [batches * position["batch_size"]] if changed and batches else []
            self._recorded.bring_to(history + part)
        if changed:
            return "data: the host's own sampler begins a new pass, since the batch has changed"
        if batches is None:
            return "data: the host's own sampler goes on with its next pass"
        live = self._live()
        if live is None or live.over:
            self._next = position
        else:
            live.go_to(position)  # begun by the host before its epoch loop
        return f"data: the pass goes on after {batches} of {len(self)} batches"

    def _live(self) -> _Iteration | None:
        return None if self._last is None else self._last()


class _Iteration:
    """One traversal; alive as long as somebody holds it. `position`: where it is begun, for one
    that goes on.
    """

    def __init__(
        self, loader: Any, recorded: _Recorded | None, position: dict[str, Any] | None
    ) -> None:
        self.loader, self.recorded = loader, recorded
        self.over = False
        self.batches = 0
        self.before = 0
        """Iterations of the host's sampler before this one."""
        if position is None:
            self._begin()
        else:
            self.go_to(position)

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self.over = True
            raise
        self.batches += 1
        return batch

    def order_digest(self) -> str | None:
        """Of the indices of the batches that were delivered."""
        if self.recorded is None:
            return None
        return self.recorded.digest(self.batches * self.loader.batch_size)

    def go_to(self, position: dict[str, Any]) -> None:
        """Begins as it was begun then, and passes over what was delivered; the random streams stay
        where they are: the run has drawn for this iteration long ago. Raises CheckpointError.
        """
        with rng.kept():
            rng.restore(position["random"])
            if self._is_begun_at(position):
                self.random_state = position["random"]
            else:
                self._begin()
            for _ in range(position["batches"]):
                next(self._iterator, None)
        self.batches, self.over = position["batches"], False
        if position.get("order") not in (None, self.order_digest()):
            raise another_order("the pass", self.recorded.sampler)

    def _begin(self) -> None:
        self.random_state = rng.capture()
        if self.recorded is not None:
            self.before = len(self.recorded.taken)
        self._iterator = iter(self.loader)

    def _is_begun_at(self, position: dict[str, Any]) -> bool:
        """Whether the host has begun just this iteration, of a sampler whose own state workers have
        moved already.
        """
        recorded, history = self.recorded, position.get("iterations")
        if recorded is None or history is None or self.batches:
            return False
        return len(history) == self.before == len(recorded.taken) - 1
