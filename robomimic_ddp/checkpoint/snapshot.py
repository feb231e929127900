"""Copies states to host memory as they are at one moment, into memory that is used again."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import nn


class Buffers:
    """Host memory that is used again: fresh memory costs several times as much as the copy."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, bool], list[torch.Tensor]] = {}

    def take(self, size: int, pinned: bool) -> torch.Tensor:
        """Return `size` bytes; `pinned`, for what comes from a GPU, makes their copy fast."""
        free = self._free.get((size, pinned))
        return free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)

    def give_back(self, buffer: torch.Tensor, pinned: bool) -> None:
        """Let another snapshot use `buffer`."""
        self._free.setdefault((len(buffer), pinned), []).append(buffer)


class Snapshot:
    """Copies of nested states, as they are at one moment.

    As torch.save does, it takes whole storages, and each once: tensors that share memory share it
    in the copy, and two files of the same moment have one copy. A tensor that has changed since is
    copied again: torch counts most changes (its version), but no fused optimizer's step and none
    through `.data`, as averages are put into nets and taken out again. So the later file compares
    the bytes.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._copies: dict[tuple, torch.Tensor] = {}
        self._outdated: list[tuple[torch.Tensor, bool]] = []
        """Copies of what has changed since, for an earlier file, and whether they are pinned."""
        self._known: set[tuple] = set()
        """Keys of copies that have the numbers of the present call."""
        self._sources: list[torch.UntypedStorage] = []
        """Kept, since the memory of a freed one could become another tensor's."""
        self._devices: set[torch.device] = set()
        self.users = 0

    def copy(self, nest: Any) -> Any:
        """Return the copy of `nest`, complete: dictionaries and lists of their class, tensors on
        the CPU, other values as deepcopy makes them.
        """
        self._known.clear()
        copied = self._copied(nest)
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
        self._devices.clear()
        return copied

    def free(self) -> None:
        """Give the memory back; the copies must not be used any more."""
        for (*_, device, _), buffer in self._copies.items():
            self._buffers.give_back(buffer, pinned=device.type == "cuda")
        for buffer, pinned in self._outdated:
            self._buffers.give_back(buffer, pinned)
        self._copies.clear()
        self._outdated.clear()
        self._sources.clear()

    def _copied(self, value: Any) -> Any:
        if type(value) in (torch.Tensor, nn.Parameter):
            return self._tensor(value)
        if type(value) in (list, tuple):
            return type(value)(self._copied(member) for member in value)
        if type(value) in (dict, OrderedDict):
            mapping = value.copy()
            if type(value) is OrderedDict:
                vars(mapping).update(vars(value))  # a state_dict's _metadata
            mapping.update((key, self._copied(member)) for key, member in value.items())
            return mapping
        return copy.deepcopy(value)

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        is_plain = value.layout == torch.strided and not (value.is_quantized or value.is_conj())
        if not is_plain or value.is_neg() or value.device.type not in ("cpu", "cuda"):
            return value.detach().clone().cpu()
        memory = self._memory(value).untyped_storage()
        view = torch.empty(0, dtype=value.dtype)
        view.set_(memory, value.storage_offset(), value.size(), value.stride())
        if isinstance(value, nn.Parameter):
            return nn.Parameter(view, value.requires_grad)
        return view.requires_grad_(value.requires_grad)

    def _memory(self, value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        version = object() if value.is_inference() else value._version
        key = (storage.data_ptr(), storage.nbytes(), value.device, version)
        if key in self._known:
            return self._copies[key]
        self._known.add(key)
        source = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
        if key in self._copies and not _are_equal(self._copies[key], source):
            self._outdated.append((self._copies.pop(key), source.is_cuda))
        if key not in self._copies:
            target = self._buffers.take(len(source), source.is_cuda)
            self._copies[key] = target.copy_(source, non_blocking=True)
            self._sources.append(storage)
            if source.is_cuda:
                self._devices.add(value.device)
        return self._copies[key]


def _are_equal(copied: torch.Tensor, source: torch.Tensor) -> bool:
    """Return whether the bytes are equal; compared on the device of `source`."""
    copied = copied.to(source.device, non_blocking=True)
    if len(source) % 8 == 0:  # eight bytes at a time
        copied, source = copied.view(torch.int64), source.view(torch.int64)
    return torch.equal(copied, source)
