"""Counters and other plain numbers among an algorithm's attributes, which steer its training."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from robomimic_ddp.distributed import group, host_algo

HINT = (
    "It is an attribute of the algorithm that training reads: set and count it alike on every rank."
)


class PlainNumbers:
    """The plain numbers of one rank, without those that something other than training steps changes
    on some rank, such as a policy's count of the actions that it has played.

    Floats that training changes count as changed: a loss that is noted differs between ranks.
    """

    def __init__(self, algo: Any) -> None:
        self._owners = list(host_algo.parts(algo))
        self._first = self._before = self._after = self._now()
        self._trained: set[str] = set()
        self._moved: set[str] = set()

    def _now(self) -> dict[str, Any]:
        return host_algo.plain_numbers(self._owners)

    def before_step(self) -> None:
        """Not collective."""
        self._before = self._now()

    def after_step(self) -> None:
        """Not collective: notes what a training step has changed."""
        self._after = self._now()
        self._trained.update(_changed(self._before, self._after))

    def items(self) -> dict[str, Hashable]:
        """Collective: name -> what is equal on all ranks."""
        present = self._now()
        self._moved.update(_changed(self._after, present))
        for moved, trained in group.gather_objects((self._moved, self._trained)):
            self._moved |= moved
            self._trained |= trained
        left_out = self._moved - self._trained
        return {
            f"plain number {name}": self._text(name, value)
            for name, value in present.items()
            if name not in left_out
        }

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, float) and value != self._first.get(name):
            return "changed in training"
        return repr(value)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name, value in after.items() if value != before.get(name)]
