"""Sums over a tensor's bits, made where the tensor is; equal bits give equal sums on any device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

_ODD = 0x9E3779B1  # any odd multiplier: makes the second sum depend on positions
_CHUNK_CPU, _CHUNK_GPU = 1 << 16, 1 << 22
"""Words taken at once: what a core's cache holds, and what keeps a GPU busy."""


def checksum(tensor: torch.Tensor) -> tuple[int, int]:
    """Two 64-bit sums over the tensor's bits, the second weighted by position."""
    return checksums([tensor])[0]


def checksums(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """`checksum` of each; one transfer from a device, however many tensors are there."""
    weights: dict[torch.device, torch.Tensor] = {}
    sums = [_sums(tensor.detach(), weights) for tensor in tensors]
    places: dict[torch.device, list[int]] = {}
    for place, pair in enumerate(sums):
        places.setdefault(pair.device, []).append(place)
    found: list[tuple[int, int]] = [(0, 0)] * len(sums)
    for on_device in places.values():
        pairs = torch.stack([sums[place] for place in on_device]).tolist()
        for place, (plain, weighted) in zip(on_device, pairs):
            found[place] = (plain, weighted)
    return found


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    """One name for the bits of all `tensors`, in their order."""
    text = repr(checksums(tensors)).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _sums(tensor: torch.Tensor, weights: dict[torch.device, torch.Tensor]) -> torch.Tensor:
    """int64 [2], modulo 2**64. `weights` keeps what is the same for all tensors of a device."""
    words = _words(tensor)
    device = words.device
    chunk = _CHUNK_CPU if device.type == "cpu" else _CHUNK_GPU
    total = torch.zeros(2, dtype=torch.int64, device=device)
    wanted = min(chunk, words.numel())
    if device not in weights or len(weights[device]) < wanted:
        weights[device] = torch.arange(wanted, device=device).mul_(_ODD).add_(1)
    for start in range(0, words.numel(), chunk):
        part = words[start : start + chunk].to(torch.int64)
        plain = part.sum()
        # Position start + i weighs (start + i) * _ODD + 1.
        weighted = part.mul_(weights[device][: part.numel()]).sum() + plain * (start * _ODD)
        total += torch.stack([plain, weighted])
    return total


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits in its own order of elements, as int32 words where the bytes allow.

    Words of 64 bits would be quicker and worse: sums are modulo 2**64, in which two changes of the
    highest bit, a float's sign, cancel out.
    """
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 4:  # a slice may begin anywhere; int32 words must not
        flat = flat.clone()
    return flat if flat.numel() % 4 else flat.view(torch.int32)
