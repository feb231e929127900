"""Tracks where each rank is, to name a rank that the others wait for.

Before each collective of a run a rank records its place ("epoch 3 train log"). A thread publishes
it through the process group's store, without collectives; if this rank stands still for a while,
the thread warns of ranks that are behind. When a collective times out, `late` names the missing
ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from robomimic_ddp.distributed.watchdog_thread import Watchdog, value_of

_FAILED = "robomimic_ddp/failed"
_current: list[Watchdog] = []
"""The watchdog of the current process group, if any."""


def begin(
    store: Any, rank: int, world_size: int, timeout: float, ends_unheard: bool = False
) -> None:
    """Publishes this rank's place from now on; after an exception to the process's end."""
    _current.append(Watchdog(store, rank, world_size, timeout, ends_unheard))
    _current[-1].start()


def end() -> None:
    """Call it before the process group is destroyed."""
    while _current:
        _current.pop().stop()


def reached(place: str) -> None:
    """Records that this rank has reached `place`; nothing without a process group of ours."""
    for watchdog in _current:
        watchdog.reached(place)


def stepped() -> None:
    """Records one more training step."""
    for watchdog in _current:
        watchdog.stepped()


@contextmanager
def without_time_limit() -> Iterator[None]:
    """For the block, ranks may wait without a time limit."""
    before = [watchdog.ends_unheard for watchdog in _current]
    for watchdog in _current:
        watchdog.ends_unheard = False
    try:
        yield
    finally:
        for watchdog, unheard in zip(_current, before):
            watchdog.restart_wait()  # first: what was without a limit counts for none
            watchdog.ends_unheard = unheard


def began() -> None:
    """Records one more forward of a net in the current step: a rank that hangs before it is behind
    those that wait for its gradients.
    """
    for watchdog in _current:
        watchdog.began()


_saving: list[str] = []
"""What this process writes now, the outermost first."""
SAVING = "saving "
"""Places of ranks that write, or wait for the rank that writes, begin so."""


@contextmanager
def saving(what: str) -> Iterator[None]:
    """For the block or the decorated function, this rank's place (`here`) is that it saves `what`,
    without a process group too. In another thread than the main one, training continues.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _saving.append(f"{SAVING}{what}")
    try:
        yield
    finally:
        _saving.pop()


def here() -> str | None:
    """Return this rank's place; None without a process group, unless it saves. Thread-safe."""
    for place in _saving[:1]:
        return place
    return _current[-1].describe() if _current else None


def missing() -> str | None:
    """Return where this rank is and which ranks are behind it, for an error; None if unknown."""
    with suppress(Exception):  # the store is gone
        return _current[-1].verdict()
    return None


def on_nodes(hosts: list[str]) -> None:
    """Lets messages name the node of each rank, by `hosts`."""
    for watchdog in _current:
        watchdog.hosts = hosts


def first_to_fail() -> bool:
    """On a rank that ends with an error: publishes that; returns whether it is the first."""
    with suppress(Exception):  # without a process group, or the store is gone
        watchdog = _current[-1]
        # Two digits: torch 2.0 makes the answer without Python's lock, and Python 3.10 ends there
        # for a text of one byte.
        rank = f"{watchdog.rank:02}"
        first = watchdog.ask(lambda: watchdog.store.compare_set(_FAILED, "", rank))
        return first == rank.encode()
    return True


def failed_rank() -> int | None:
    """Return the rank that failed first, as far as this one knows: of two ranks, the other one,
    even where its process was killed and could publish nothing.
    """
    published = _failure()
    if published is not None:
        return int(published)
    return 1 - _current[-1].rank if _current and _current[-1].world_size == 2 else None


def name(rank: int) -> str:
    """Return how messages call a rank: with its node, if there are several."""
    return _current[-1].name(rank) if _current else f"rank {rank}"


def somebody_failed() -> bool:
    """Return whether a rank has failed. May wait while the main thread uses the store."""
    return _failure() is not None


def _failure() -> bytes | None:
    with suppress(Exception):  # without a process group, or the store is gone
        watchdog = _current[-1]
        return watchdog.ask(lambda: value_of(watchdog.store, _FAILED))
    return None
