"""Counters and other plain numbers among an algorithm's attributes, which steer its training."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from robomimic_ddp.distributed import group, host_algo

HINT = (
    "It is an attribute of the algorithm that training reads: set and count it alike on every rank."
)
_CHANGED = "changed in training"


class PlainNumbers:
    """Those of one rank. Left out is what anything but training steps changes on some rank, such as
    a policy's count of the actions that it has played.

    Floats that training changes count as changed: a loss that is noted differs between ranks.
    """

    def __init__(self, algo: Any) -> None:
        self._owners = list(host_algo.parts(algo))
        self._first = self._latest = host_algo.plain_numbers(self._owners)
        self._left_out: set[str] = set()

    def after_step(self) -> None:
        """Notes what a training step has left; not collective."""
        self._latest = host_algo.plain_numbers(self._owners)

    def items(self) -> dict[str, Hashable]:
        """Collective: name -> what is equal on all ranks."""
        present = host_algo.plain_numbers(self._owners)
        moved = [name for name, value in present.items() if value != self._latest.get(name)]
        self._left_out.update(*group.gather_objects(moved))
        return {
            f"plain number {name}": self._text(name, value)
            for name, value in present.items()
            if name not in self._left_out
        }

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, float) and value != self._first.get(name):
            return _CHANGED
        return repr(value)
