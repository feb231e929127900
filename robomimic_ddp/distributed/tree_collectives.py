"""Gathers to the main rank, and scatters, nested dicts and lists of plain values and tensors.

Tensors are sent one by one, so that only the main rank needs memory for those of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from robomimic_ddp.config import tree
from robomimic_ddp.distributed import fsdp, group


def gathered(nest: Any) -> list[Any] | None:
    """Collective: every rank's nest, in rank order, on the main rank; None on the others."""
    if group.world_size() == 1:
        return [nest]
    tensors: list[torch.Tensor] = []
    outline = group.outline(nest, tensors)
    kinds = [(tensor.shape, tensor.dtype) for tensor in tensors]
    sent = group.gather_objects((outline, kinds))
    if not group.is_main():
        for part in _bytes_of(tensors):
            dist.send(part, dst=0)
        return None
    nests = [nest]
    for rank, (outline, kinds) in list(enumerate(sent))[1:]:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in kinds]
        for part in _bytes_of(tensors):
            dist.recv(part, src=rank)
        nests.append(group.filled(outline, tensors))
    return nests


def scattered(nests: list[Any] | None) -> Any:
    """Collective: the main rank's `nests` has one for each rank; returns this rank's."""
    if group.world_size() == 1:
        assert nests is not None
        return nests[0]
    lists: list[list[torch.Tensor]] = []
    sent = None
    if group.is_main():
        assert nests is not None and len(nests) == group.world_size()
        lists = [[] for _ in nests]
        outlines = [group.outline(nest, tensors) for nest, tensors in zip(nests, lists)]
        sent = [
            (outline, [(tensor.shape, tensor.dtype) for tensor in tensors])
            for outline, tensors in zip(outlines, lists)
        ]
    outline, kinds = group.broadcast_object(sent)[group.rank()]
    if group.is_main():
        for rank, tensors in list(enumerate(lists))[1:]:
            for part in _bytes_of(tensors):
                dist.send(part, dst=rank)
        return nests[0]
    tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in kinds]
    for part in _bytes_of(tensors):
        dist.recv(part, src=0)
    return group.filled(outline, tensors)


def whole(nest: Any) -> Any:
    """Collective where `nest` has sharded tensors: a copy in which they are whole, on the main
    rank's CPU; None in their places on other ranks. A GPU has one whole tensor at a time.

    Tensors that share memory are gathered once, and share it again.
    """
    sharded = [value for value in tree.leaves(nest) if fsdp.is_sharded(value)]
    if not sharded:
        return nest
    # The main rank's word, since other ranks' shards may be empty, which all begin at 0.
    firsts: dict[tuple, int] = {}
    memory = [(fsdp.local(tensor).data_ptr(), tensor.shape) for tensor in sharded]
    sources = group.broadcast_object([firsts.setdefault(at, i) for i, at in enumerate(memory)])
    made: list[torch.Tensor | None] = []
    for index, (tensor, source) in enumerate(zip(sharded, sources)):
        if source == index:
            full = fsdp.full(tensor)
            made.append(full.cpu() if group.is_main() else None)
        else:
            made.append(made[source])
    given = iter(made)
    return tree.mapped(lambda value: next(given) if fsdp.is_sharded(value) else value, nest)


@dataclass(frozen=True)
class Lent:
    """A tensor that the main rank has, in a nest that every rank has."""

    shape: torch.Size
    dtype: torch.dtype
    tensor: torch.Tensor | None
    """On the main rank."""

    def fetch(self) -> torch.Tensor:
        """Collective: the tensor, on every rank's CPU."""
        tensor = self.tensor
        if tensor is None:
            tensor = torch.empty(self.shape, dtype=self.dtype)
        group.broadcast_tensors(_bytes_of([tensor]))
        return tensor


def lent(nest: Any) -> Any:
    """Collective: the main rank's nest on every rank, with a `Lent` for each tensor, so that no
    other rank needs memory for all of them. `nest` itself on one rank.
    """
    if group.world_size() == 1:
        return nest
    tensors: list[torch.Tensor] = []
    sent = None
    if group.is_main():
        sent = group.outline(nest, tensors), [(tensor.shape, tensor.dtype) for tensor in tensors]
    outline, kinds = group.broadcast_object(sent)
    places = [
        Lent(shape, dtype, tensors[index] if tensors else None)
        for index, (shape, dtype) in enumerate(kinds)
    ]
    return group.filled(outline, places)


def _bytes_of(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
