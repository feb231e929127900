"""Switches the host's Adam and AdamW to torch's fused kernel.

Results are the same up to the last bits. `state_dict`, and so the host's checkpoints, keep the
host's options.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import host_algo

KINDS = (torch.optim.Adam, torch.optim.AdamW)
_STEP = "step"
_SKIPS = "_step_supports_amp_scaling"
"""torch's mark of an optimizer whose kernel skips a step with an overflow. For others GradScaler
synchronises the GPU before each step to read the overflow.
"""

_CHECKS_ALL_STRIDES = torch.__version__ < (2, 5)
"""Before torch 2.5 the kernel refuses gradients with other strides, also of a dimension of size 1.
"""


def install(model: Any, undo: ExitStack) -> bool:
    """Fuses the model's optimizers until `undo` is closed; False if none can be."""
    fused = [
        optimizer for _, optimizer in host_algo.named_optimizers(model) if _can_be_fused(optimizer)
    ]
    for optimizer in fused:
        host_options = [entry.get("fused") for entry in optimizer.param_groups]
        handles = (
            optimizer.register_state_dict_post_hook(partial(_export, host_options)),
            optimizer.register_load_state_dict_post_hook(_fuse),
        )
        _fuse(optimizer)
        undo.enter_context(swapped(optimizer, _SKIPS, True))
        for handle in handles:
            undo.callback(handle.remove)
        undo.callback(_part, optimizer, host_options)
    return bool(fused)


def _can_be_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether this torch has the kernel for the parameters, and the host has set none."""
    if type(optimizer) not in KINDS or not hasattr(optimizer, "register_state_dict_post_hook"):
        return False
    for entry in optimizer.param_groups:
        chosen = any(entry.get(name) for name in ("fused", "foreach", "capturable"))
        if chosen or entry.get("differentiable") or isinstance(entry["lr"], torch.Tensor):
            return False
        if any(_is_thin(parameter) for parameter in entry["params"]) and _CHECKS_ALL_STRIDES:
            return False
        for device, dtype in {(p.device, p.dtype) for p in entry["params"]}:
            probe = torch.zeros(1, device=device, dtype=dtype).requires_grad_()
            probe.grad = torch.zeros_like(probe)
            try:
                trial = type(optimizer)([probe], fused=True)
                with torch.no_grad():  # newer versions refuse in the step; hooks are not called
                    inspect.unwrap(type(trial).step)(trial)
            except (RuntimeError, TypeError):
                return False
    return True


def _is_thin(parameter: torch.Tensor) -> bool:
    """Return whether these are a GPU's weights of a convolution of images with a dimension of size
    1, whose gradient from cuDNN has another stride there.
    """
    return parameter.is_cuda and parameter.dim() == 4 and 1 in parameter.shape


def _fuse(optimizer: torch.optim.Optimizer) -> None:
    """Set the flag, and move step counts to the device of the parameters, as the kernel needs."""
    for entry in optimizer.param_groups:
        entry["fused"] = True
        for parameter in entry["params"]:
            state = optimizer.state.get(parameter, {})
            if _STEP in state:
                step = torch.as_tensor(state[_STEP], dtype=torch.float32)
                state[_STEP] = step.to(parameter.device)


def _part(optimizer: torch.optim.Optimizer, host_options: list) -> None:
    for entry, option in zip(optimizer.param_groups, _of_all(host_options)):
        entry["fused"] = option
    for state in optimizer.state.values():
        if torch.is_tensor(state.get(_STEP)):
            state[_STEP] = state[_STEP].cpu()


def _of_all(host_options: list) -> Iterator[bool | None]:
    """Yield the host's options; None for each parameter group that it adds during training."""
    return itertools.chain(host_options, itertools.repeat(None))


def _export(host_options: list, optimizer: Any, state_dict: dict) -> dict:
    """`state_dict` with the host's options, and step counts on the CPU."""
    groups = [
        {**entry, "fused": option}
        for entry, option in zip(state_dict["param_groups"], _of_all(host_options))
    ]
    states = {
        key: {**state, _STEP: state[_STEP].cpu()} if torch.is_tensor(state.get(_STEP)) else state
        for key, state in state_dict["state"].items()
    }
    return {**state_dict, "param_groups": groups, "state": states}
