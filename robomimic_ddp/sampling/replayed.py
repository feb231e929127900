"""The train loader of one rank: the host's own DataLoader, whose place can be found again."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from robomimic_ddp import random_streams


class ReplayedLoader:
    """Hands out what the host's DataLoader hands out, and remembers where its iteration began.

    The host's sampler draws from the global random streams when an iteration begins. To find a
    place inside that iteration again, the streams are set back to what they were then, a new one
    is begun, and the batches that were delivered are passed over. The DataLoader is `loader`; other
    attributes are its own.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._last: weakref.ref | None = None
        self._next: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        position, self._next = self._next, None
        if position is None:
            iteration = _Iteration(self.loader)
        else:
            with random_streams.kept():  # the run has drawn for this iteration long ago
                iteration = _Iteration(self.loader)
            iteration.go_to(position)
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
        live = self._live()
        if live is None or live.over:
            return {"kind": "replay", "batches": None}
        return {
            "kind": "replay",
            "batches": live.batches,
            "batch_size": self._batch_size(),
            "random": live.random_state,
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
        """Continues at the `position` of a run on one rank; says what that means."""
        if position is None or position.get("kind") != "replay":
            return "data: the host's own sampler begins a new pass"
        if position.get("batch_size", self._batch_size()) != self._batch_size():
            return "data: the host's own sampler begins a new pass, since the batch has changed"
        if position["batches"] is None:
            return "data: the host's own sampler goes on with its next pass"
        live = self._live()
        if live is None or live.over:
            self._next = position
        else:
            live.go_to(position)  # begun by the host before its epoch loop
        return f"data: the pass goes on after {position['batches']} of {len(self)} batches"

    def _live(self) -> _Iteration | None:
        return None if self._last is None else self._last()


class _Iteration:
    """One traversal; alive as long as somebody holds it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.over = False
        self.batches = 0
        self.random_state = random_streams.capture()
        self._iterator = iter(loader)

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

    def go_to(self, position: dict[str, Any]) -> None:
        """Begins anew as it was begun then, and passes over what was delivered; the random streams
        stay where they are.
        """
        with random_streams.kept():
            random_streams.restore(position["random"])
            self.random_state = position["random"]
            self._iterator = iter(self.loader)
            for _ in range(position["batches"]):
                next(self._iterator)
        self.batches, self.over = position["batches"], False
