"""Batches cross to a GPU without the program waiting for it.

The host's `to_device` copies out of memory as it finds it: such a copy waits for all that the GPU
was given before. Here a tensor that is not pinned as it stands, as cuts of a batch are not, is
first put into pinned memory, and its copy is one more thing given to the GPU.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any, Callable

import torch

from robomimic_ddp.swapping import swapped

NAME = "to_device"


def install(model: Any, undo: ExitStack) -> bool:
    """Until `undo` is closed, the host's `to_device` waits for no copy; False where it has none."""
    package = type(model).__module__.partition(".")[0]
    module = sys.modules.get(f"{package}.utils.tensor_utils")
    host = getattr(module, NAME, None)
    if not callable(host):
        return False
    undo.enter_context(swapped(module, NAME, _Crossing(host)))
    return True


class _Crossing:
    """Stands for `host`, which finds on the device what it would have to bring there."""

    def __init__(self, host: Callable) -> None:
        self.host = host

    def __call__(self, x: Any, device: Any) -> Any:
        device = torch.device(device)
        return self.host(x if device.type == "cpu" else _crossed(x, device), device)


def _crossed(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.requires_grad:
            return value
        return _pinned(value).to(device, non_blocking=True)
    if isinstance(value, dict):
        made = value.copy()
        made.update((key, _crossed(item, device)) for key, item in value.items())
        return made
    if type(value) in (list, tuple):
        return type(value)(_crossed(item, device) for item in value)
    return value


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous() and tensor.is_pinned():
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
