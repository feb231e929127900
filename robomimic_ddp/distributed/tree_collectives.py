"""Gathers to the main rank, lends and broadcasts nested dicts and lists of plain values and
tensors.

Tensors are sent one by one, so that only the main rank needs memory for those of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from robomimic_ddp.config import tree
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import fsdp

Header = tuple[Any, list]
"""A nest with a `_Place` for each tensor, and their shapes and dtypes."""


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor, which is sent separately."""

    index: int


def _packed(nest: Any) -> tuple[Header, list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []

    def stand_in(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value.contiguous())
        return _Place(len(tensors) - 1)

    outline = tree.mapped(stand_in, nest)
    return (outline, [(tensor.shape, tensor.dtype) for tensor in tensors]), tensors


def _filled(outline: Any, tensors: list) -> Any:
    return tree.mapped(
        lambda value: tensors[value.index] if isinstance(value, _Place) else value, outline
    )


def whole(nest: Any) -> Any:
    """Collective where `nest` has sharded tensors: returns a copy in which they are whole, on the
    main rank's CPU; None in their places on other ranks. A GPU has one whole tensor at a time.

    Tensors that share memory are gathered once, and share it again.
    """
    sharded = [value for value in tree.leaves(nest) if fsdp.is_sharded(value)]
    if not sharded:
        return nest
    # The main rank's word, since other ranks' shards may be empty, which all begin at 0.
    firsts: dict[tuple, int] = {}
    memory = [(fsdp.local(tensor).data_ptr(), tensor.shape) for tensor in sharded]
    sources = group.broadcast_object([firsts.setdefault(at, i) for i, at in enumerate(memory)])
    tensors: list[torch.Tensor | None] = []
    for index, (tensor, source) in enumerate(zip(sharded, sources)):
        if source == index:
            full = fsdp.full(tensor)
            tensors.append(full.cpu() if group.is_main() else None)
        else:
            tensors.append(tensors[source])
    remaining = iter(tensors)
    return tree.mapped(lambda value: next(remaining) if fsdp.is_sharded(value) else value, nest)


@dataclass(frozen=True)
class Lent:
    """A tensor that the main rank has, in a nest that every rank has."""

    shape: torch.Size
    dtype: torch.dtype
    tensor: torch.Tensor | None
    """On the main rank."""

    def fetch(self) -> torch.Tensor:
        """Collective: returns the tensor, on every rank's CPU."""
        tensor = self.tensor
        if tensor is None:
            tensor = torch.empty(self.shape, dtype=self.dtype)
        group.broadcast_tensors([tensor])
        return tensor


def lent(nest: Any) -> Any:
    """Collective: returns the main rank's nest on every rank, with a `Lent` for each tensor, so
    that no other rank needs memory for all of them. `nest` itself on one rank.
    """
    if group.world_size() == 1:
        return nest
    header, tensors = _packed(nest if group.is_main() else None)
    outline, kinds = group.broadcast_object(header)
    lent_ones = [Lent(*kind, tensors[i] if tensors else None) for i, kind in enumerate(kinds)]
    return _filled(outline, lent_ones)


def broadcast(nest: Any) -> Any:
    """Collective: returns the main rank's nest, with CPU tensors, on every rank. These are sent one
    by one, so that no rank needs memory for more than one further copy.
    """

    def fetched(value: Any) -> Any:
        return value.fetch() if isinstance(value, Lent) else value

    return tree.mapped(fetched, lent(nest))
