"""What tests of processes share: a launcher's variables, and waiting for what a process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def rank_variables(rank: int = 0, ranks: int = 1, **changes: str) -> dict[str, str]:
    """Return what a launcher sets for one of the ranks of a node, with `changes`."""
    numbers = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    return {**{name: str(number) for name, number in numbers.items()}, **meet, **changes}


def wait_for(
    is_true: Callable[[], Any], seconds: float = 60.0, state: Callable[[], Any] | None = None
) -> None:
    """Return once `is_true()`; after `seconds` fail, with what `state()` shows."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, state() if state else "it has not come true"
        time.sleep(0.03)
