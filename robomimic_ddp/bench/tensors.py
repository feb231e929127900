"""Bytes of the tensors that stay in memory between steps, counted storage by storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def kept(
    nets: nn.Module,
    optimizer: torch.optim.Optimizer,
    averaged: Iterable[torch.Tensor],
    parallel: Iterable[DistributedDataParallel],
) -> dict[str, list[torch.Tensor]]:
    """Tensors by kind; of buckets that are no gradients' memory, tensors of their size without
    memory.
    """
    parameters = list(nets.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": parameters,
        "averaged copy": list(averaged),
        "gradients": [one.grad for one in parameters if one.grad is not None],
        "moments": [one for one in states if torch.is_tensor(one) and one.dim()],
        "buckets": list(_buckets(parallel)),
    }


def _buckets(parallel: Iterable[DistributedDataParallel]) -> Iterator[torch.Tensor]:
    for one in parallel:
        for parameter in one.parameters():
            if parameter.requires_grad and not one.gradient_as_bucket_view:
                yield torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")


def tensor_bytes(tensors: dict[str, list[torch.Tensor]]) -> dict[str, int]:
    """Bytes of each kind; memory that several tensors share counts once, for the first kind."""
    seen: set[int] = set()
    sizes = {}
    for kind, members in tensors.items():
        sizes[kind] = 0
        for one in members:
            if one.device.type == "meta":
                sizes[kind] += one.numel() * one.element_size()
                continue
            storage = one.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                sizes[kind] += storage.nbytes()
    return sizes
