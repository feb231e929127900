"""Copies batches to a GPU from pinned memory, with `non_blocking=True`.

The host slices a loader's pinned batch before `to_device`, and slices are not pinned. Here each
tensor is pinned when it is copied. The host also makes floats of images before it sends them, four
times as many bytes: a batch that it processes for training is sent first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from robomimic_ddp.config import tree
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.monitoring import step_hooks

NAME = "to_device"
FLOATS, PROCESS = "to_float", "process_batch_for_training"


def install(model: Any, undo: ExitStack) -> bool:
    """Until `undo` is closed, the host's `to_device` pins tensors; False if it has none."""
    package = type(model).__module__.partition(".")[0]
    module = sys.modules.get(f"{package}.utils.tensor_utils")
    host = getattr(module, NAME, None)
    if not callable(host):
        return False
    undo.enter_context(swapped(module, NAME, partial(_to_device, host)))
    device = getattr(model, "device", None)
    if device is not None and callable(getattr(module, FLOATS, None)) and hasattr(model, PROCESS):
        process = partial(_process, module, device)
        undo.enter_context(step_hooks.installed(model, methods={PROCESS: process}))
    return True


def _process(module: Any, device: Any, host: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return the host's processed batch; within, what becomes floats is sent first."""
    to_float = partial(_to_float, getattr(module, FLOATS), device)
    with swapped(module, FLOATS, to_float):
        return host(*args, **kwargs)


def _to_float(host: Callable, device: Any, x: Any) -> Any:
    """`host`'s result, with CPU tensors moved to the `device` first."""
    return host(_moved(x, device))


def _to_device(host: Callable, x: Any, device: Any) -> Any:
    """`host`'s result, with CPU tensors moved to the `device` first."""
    return host(_moved(x, device), device)


def _moved(x: Any, device: Any) -> Any:
    if torch.device(device).type == "cpu":
        return x
    return tree.mapped(partial(sent, device=torch.device(device)), x)


def sent(value: Any, device: torch.device) -> Any:
    """Return a CPU tensor on `device`; other values, and tensors with gradients, unchanged."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.requires_grad:
        return value
    return _pinned(value).to(device, non_blocking=True)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous() and tensor.is_pinned():
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
