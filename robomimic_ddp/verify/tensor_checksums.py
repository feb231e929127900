"""Digests of nested values, and checksums of a tensor's bits, computed on its device, and equal on
any device.

Checksums are sums over positions: those of a sharded tensor's parts add up to those of the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from robomimic_ddp.distributed.gradients import fsdp

_ODD = 0x9E3779B1  # any odd multiplier: makes the second sum depend on positions
_WORD_BYTES = 4
_ROW = 256
_CHUNK_CPU, _CHUNK_GPU = 1024 * _ROW, 16384 * _ROW
"""Words of a chunk, measured: enough for a call, and to stay in a cache. Whole rows."""
_SMALL = 64 * _ROW
"""Up to this number of words the calls dominate the time."""


def checksum(tensor: torch.Tensor) -> tuple[int, int]:
    """Two 64-bit sums over the tensor's bits, the second weighted by position."""
    return checksums([tensor])[0]


def checksums(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """`checksum` of each, with one transfer per device. Tensors that share memory, as averages and
    their net do, are read once.

    Collective where tensors are sharded: those of the whole, from all parts of this rank's copy.
    """
    known: dict[tuple, torch.Tensor] = {}
    buffers: dict[torch.device, torch.Tensor] = {}
    sums, sharded = [], {}
    for place, tensor in enumerate(tensors):
        first_word, gathered = 0, None
        if fsdp.is_sharded(tensor) and tensor.element_size() % _WORD_BYTES:
            tensor = fsdp.full(tensor)  # a part may begin within a word
            gathered = place  # it is freed, and the next one may get its memory
        elif fsdp.is_sharded(tensor):
            sharded[place] = tensor
            first_word = fsdp.first_element(tensor) * (tensor.element_size() // _WORD_BYTES)
            tensor = fsdp.local(tensor)
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        memory += (first_word, gathered)
        if memory not in known:
            known[memory] = _sums(tensor.detach(), buffers, first_word)
        sums.append(known[memory])
    places: dict[torch.device, list[int]] = {}
    for place, pair in enumerate(sums):
        places.setdefault(pair.device, []).append(place)
    results: list[tuple[int, int]] = [(0, 0)] * len(sums)
    for on_device in places.values():
        pairs = torch.stack([sums[place] for place in on_device])
        rows = [row for row, place in enumerate(on_device) if place in sharded]
        if rows:
            parts = [sharded[on_device[row]] for row in rows]
            pairs[rows] = fsdp.sum_over_shards(pairs[rows], parts)
        for place, (plain, weighted) in zip(on_device, pairs.tolist()):
            results[place] = (plain, weighted)
    return results


def digest(nest: Any) -> str:
    """Return the hex digest of every bit and the structure of nested mappings and sequences of
    plain values, arrays and CPU tensors.
    """
    hashed = hashlib.blake2b(digest_size=16)

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            hashed.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
            flat = value.contiguous().reshape(-1)
            hashed.update(flat.view(torch.uint8).numpy() if flat.numel() else b"")
        elif hasattr(value, "shape"):
            array = np.ascontiguousarray(value)
            hashed.update(f"array {array.dtype} {array.shape};".encode() + array.tobytes())
        elif isinstance(value, Mapping):
            hashed.update(f"dict {len(value)};".encode())
            for key, part in value.items():
                hashed.update(f"{key!r}:".encode())
                add(part)
        elif isinstance(value, (list, tuple)):
            hashed.update(f"list {len(value)};".encode())
            for part in value:
                add(part)
        else:
            hashed.update(f"{value!r};".encode())

    add(nest)
    return hashed.hexdigest()


def _sums(
    tensor: torch.Tensor, buffers: dict[torch.device, torch.Tensor], first_word: int
) -> torch.Tensor:
    """int64 [2], modulo 2**64: of the words, and of each times position * _ODD + 1. `first_word`:
    the position of the tensor's first.
    """
    words = _words(tensor)
    if words.numel() <= _SMALL:
        plain, positions = words.sum(), _by_position(words)
    else:
        plain, positions = _of_rows(words, buffers)
    return torch.stack([plain, (positions + first_word * plain) * _ODD + plain])


def _of_rows(
    words: torch.Tensor, buffers: dict[torch.device, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of the words, and of each times its position. `buffers`: a chunk of memory for each
    device.

    Rows have _ROW words: with sums of rows and of columns no word is multiplied.
    """
    device, count = words.device, words.numel()
    chunk = _CHUNK_CPU if device.type == "cpu" else _CHUNK_GPU
    if device not in buffers:
        buffers[device] = torch.empty(chunk, dtype=torch.int64, device=device)
    columns = torch.zeros(_ROW, dtype=torch.int64, device=device)
    rows = torch.empty(-(-count // _ROW), dtype=torch.int64, device=device)
    for start in range(0, count, chunk):
        part = words[start : start + chunk]
        height = -(-len(part) // _ROW)
        buffer = buffers[device][: height * _ROW]
        buffer[: len(part)].copy_(part)  # an assignment would allocate memory to convert
        buffer[len(part) :].zero_()  # adds nothing
        table, first = buffer.view(height, _ROW), start // _ROW
        columns += table.sum(0)
        torch.sum(table, 1, out=rows[first : first + height])
    return columns.sum(), _by_position(rows) * _ROW + _by_position(columns)


def _by_position(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of each value times its position."""
    return (values * torch.arange(len(values), device=values.device)).sum()


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bits in the order of its elements, as int32 words if the size allows. In
    sums of 64-bit words two changes of the highest bit, a float's sign, would cancel.
    """
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 4:  # a slice may start anywhere; int32 words must be aligned
        flat = flat.clone()
    return flat if flat.numel() % 4 else flat.view(torch.int32)
