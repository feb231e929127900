"""Gathers to the main rank, and scatters, nested dicts and lists of plain values and CPU tensors.

Tensors are sent one by one, so that only the main rank needs memory for those of others.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from robomimic_ddp.distributed import group


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


def _bytes_of(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
