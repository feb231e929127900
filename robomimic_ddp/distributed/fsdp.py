"""FSDP2 (`ddp.mode=fsdp`): nets, gradients, optimizer state and averages are sharded over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

try:
    from torch.distributed.tensor import DTensor, distribute_tensor
except ImportError:  # torch before 2.5
    DTensor = distribute_tensor = None


def is_sharded(held: Any) -> bool:
    """Whether a tensor, or a parameter or buffer of a module, is sharded over ranks."""
    if isinstance(held, nn.Module):
        return any(map(is_sharded, [*held.parameters(), *held.buffers()]))
    return DTensor is not None and isinstance(held, DTensor)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Collective where `tensor` is sharded: the whole of it, on every rank; else `tensor` itself."""
    return tensor.detach().full_tensor() if is_sharded(tensor) else tensor


def shard_like(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`whole`, which every rank has, sharded as `like` is and on its device; each rank keeps its
    part. `whole` itself where `like` is not sharded.
    """
    if not is_sharded(like):
        return whole
    whole = whole.detach().to(like.device)
    # Without a source rank nothing is sent.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
