"""Batches cross to a GPU without the program waiting for it.

The host's `to_device` copies out of memory as it finds it: such a copy waits for all that the GPU
was given before. Here a tensor that is not pinned as it stands, as cuts of a batch are not, is
first put into pinned memory, and copied on a stream of its own: beside the step before it, where
the program is ahead of the GPU.
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
        self._streams: dict[torch.device, Any] = {}

    def __call__(self, x: Any, device: Any) -> Any:
        device = torch.device(device)
        if device.type == "cuda":
            x = self._beside(x, device)
        elif device.type != "cpu":
            x, _ = _crossed(x, device)
        return self.host(x, device)

    def _beside(self, x: Any, device: torch.device) -> Any:
        present = torch.cuda.current_stream(device)
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        with torch.cuda.stream(self._streams[device]):
            x, copies = _crossed(x, device)
        present.wait_stream(self._streams[device])
        for copy in copies:
            copy.record_stream(present)  # whose work is to be done before the memory is used anew
        return x


def _crossed(value: Any, device: torch.device) -> tuple[Any, list[torch.Tensor]]:
    """`value` with its CPU tensors on `device`, and these; no gradient's way is cut."""
    copies: list[torch.Tensor] = []

    def crossed(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu" or value.requires_grad:
                return value
            copies.append(_pinned(value).to(device, non_blocking=True))
            return copies[-1]
        if isinstance(value, dict):
            made = value.copy()
            made.update((key, crossed(item)) for key, item in value.items())
            return made
        if type(value) in (list, tuple):
            return type(value)(map(crossed, value))
        return value

    return crossed(value), copies


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous() and tensor.is_pinned():
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
