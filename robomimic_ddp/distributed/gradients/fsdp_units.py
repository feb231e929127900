"""The units in which FSDP shards a net: modules whose parameters are gathered together."""

from __future__ import annotations

import inspect
import re
from collections.abc import Container

from torch import nn

MOST, LEAST = 1 / 4, 1 / 100
"""Shares of its net of a unit: at most, for its memory, and at least, since each is a message."""
_PAST_CALL = re.compile(r"(?<!\))\.forward\(")
"""`self.nets[key].forward(x)`, and not `super().forward(x)`."""


def units(net: nn.Module) -> list[nn.Module]:
    """Return the modules of `net` that are gathered one at a time: the largest that are called and
    have at most MOST of its parameters, and larger ones without parts. What is left is the net's
    own.
    """
    most = MOST * size(net)
    return _units(net, most, LEAST * most / MOST) or _units(net, most, 0)


def _units(net: nn.Module, most: float, least: float) -> list[nn.Module]:
    modules: list[nn.Module] = []
    claimed: set[int] = set()
    holders: dict[int, list[nn.Module]] = {}
    for holder in net.modules():
        for child in holder.children():
            holders.setdefault(id(child), []).append(holder)

    def is_closed(module: nn.Module) -> bool:
        """Return whether its parts are in no other module, as those of an encoder's core may be."""
        inside = set(map(id, module.modules()))
        return all(
            id(holder) in inside for part in inside - {id(module)} for holder in holders[part]
        )

    def look(parent: nn.Module, calls_past: bool) -> None:
        for child in parent.children():
            count = size(child, claimed)  # what the net has under two names counts once
            if count <= least:
                continue
            is_called = not calls_past and not _is_container(child)
            has_parts = _has_parts(child)
            if is_called and (count <= most or not has_parts) and is_closed(child):
                modules.append(child)
                claimed.update(map(id, child.parameters()))
            elif has_parts:
                look(child, calls_past if _is_container(child) else _calls_past(child))

    look(net, _calls_past(net))
    return modules


def size(module: nn.Module, without: Container[int] = ()) -> int:
    """Return the number of a module's parameters, but those with an id in `without`."""
    return sum(p.numel() for p in module.parameters() if id(p) not in without)


def _has_parts(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return False  # it reads the weights of its parts, and calls none
    return any(next(child.parameters(), None) is not None for child in module.children())


def _is_container(module: nn.Module) -> bool:
    return type(module).forward is nn.Module.forward  # as ModuleList's and ModuleDict's is


def _calls_past(module: nn.Module) -> bool:
    """Return whether its forward calls `part.forward(x)`, past the hooks that gather, as
    robomimic's ObservationGroupEncoder does. Source that cannot be read is taken to.
    """
    try:
        return _PAST_CALL.search(inspect.getsource(type(module).forward)) is not None
    except (OSError, TypeError):
        return True
