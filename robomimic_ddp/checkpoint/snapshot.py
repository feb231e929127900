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
    """A copy of the nested state `nest` as it is now, in memory of `buffers`.

    As torch.save does, it takes whole storages, and each once: tensors that share memory share it
    in the copy.
    """

    def __init__(self, nest: Any, buffers: Buffers) -> None:
        self._buffers = buffers
        self._copies: dict[tuple, torch.Tensor] = {}
        """Address, size and device of a storage -> its bytes."""
        self.content = self._copied(nest)
        """The copy: dictionaries and lists of their class, tensors on the CPU, other values as
        deepcopy makes them.
        """
        for device in {device for *_, device in self._copies if device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()

    def free(self) -> None:
        """Give the memory back; the copy must not be used any more."""
        for (*_, device), buffer in self._copies.items():
            self._buffers.give_back(buffer, pinned=device.type == "cuda")
        self._copies.clear()

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
        key = (storage.data_ptr(), storage.nbytes(), value.device)
        if key not in self._copies:
            source = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            target = self._buffers.take(len(source), source.is_cuda)
            self._copies[key] = target.copy_(source, non_blocking=True)
        return self._copies[key]
