"""Every random number that a training step asks for, in this process's log: of which generator,
with which seed, where in its stream.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Ledger(TorchDispatchMode):
    """Notes the draws of the block, those of the backward pass too."""

    is_paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and not Ledger.is_paused:
            note(kwargs.get("generator") or _default(args, kwargs), str(func))
        return func(*args, **kwargs)


def _default(args: tuple, kwargs: dict) -> torch.Generator:
    """The generator of the device on which a call without one draws."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    device = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu"))
    if device.type != "cuda":
        return torch.default_generator
    number = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[number]


def note(generator: torch.Generator, what: str) -> None:
    """Write a draw. A CPU's generator has no offset: its state's digest stands for it."""
    state = generator.get_state().numpy().tobytes()
    place = hashlib.sha256(state).hexdigest()[:16]
    if generator.device.type == "cuda":
        place = str(int.from_bytes(state[8:16], "little"))
    text = f"draw {generator.device.type} {generator.initial_seed()} {place} {what}"
    ctypes.CDLL(None).pretend_mark(text.encode())


def note_all(what: str) -> None:
    """Write where both generators of this rank are."""
    note(torch.default_generator, what)
    note(torch.cuda.default_generators[torch.cuda.current_device()], what)


@contextmanager
def paused() -> Iterator[None]:
    """For the block ranks draw alike on purpose."""
    Ledger.is_paused = True
    try:
        yield
    finally:
        Ledger.is_paused = False


def alike(zero: list[str], one: list[str]) -> list[str]:
    """The draws of two ranks' lists at which both had the same seed and offset."""
    assert len(zero) == len(one), f"ranks drew {len(zero)} and {len(one)} times"
    return [draw for draw, other in zip(zero, one) if draw.split()[:3] == other.split()[:3]]
