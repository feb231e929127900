"""Converts convolution weights of image encoders to channels_last, which GPUs and oneDNN use.

Gradients, moments and averages get the same memory format, since fused kernels walk through memory.
Saved files keep the usual format.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from robomimic_ddp.distributed import host_algo
from robomimic_ddp.training.step.activation_checkpointing import IMAGE_LAYERS


def install(model: Any, nets: list, undo: ExitStack) -> int:
    """Converts the image weights of `nets`, their averages and moments until `undo` is closed;
    returns the number of converted weights of the nets.
    """
    weights = [layer.weight for layer in _layers(nets)]
    if not weights:
        return 0
    ema = getattr(model, "ema", None)
    copies = [getattr(model, "ema_nets", None), getattr(ema, "averaged_model", None)]
    layers = _layers([*nets, *(one for one in copies if isinstance(one, nn.Module))])
    tensors = [layer.weight for layer in layers] + _shadows(model, ema, weights)
    for tensor in tensors:
        _lay(tensor, torch.channels_last)
    for layer in layers:
        undo.callback(layer._register_state_dict_hook(_export).remove)
    for _, optimizer in host_algo.named_optimizers(model):
        _lay_moments(optimizer)
        for handle in (
            optimizer.register_state_dict_post_hook(_export_moments),
            optimizer.register_load_state_dict_post_hook(_lay_moments),
        ):
            undo.callback(handle.remove)
        undo.callback(_lay_moments, optimizer)
    # Undone in reverse: first weights, then moments.
    undo.callback(_lay_back, [layer.weight for layer in layers])
    undo.callback(lambda: _lay_back(_shadows(model, ema, weights)))
    return len(weights)


def _layers(modules: Iterable[nn.Module]) -> list[nn.Module]:
    found = (one for module in modules for one in module.modules())
    return list(dict.fromkeys(one for one in found if isinstance(one, IMAGE_LAYERS)))


def _shadows(model: Any, ema: Any, weights: list) -> list[torch.Tensor]:
    """The averages of current diffusers, in the order of the parameters."""
    shadows = vars(ema).get("shadow_params") if ema is not None else None
    parameters = [one for _, net in host_algo.named_nets(model) for one in net.parameters()]
    ours = {id(weight) for weight in weights}
    if not shadows or len(shadows) != len(parameters):
        return []
    return [shadow for shadow, one in zip(shadows, parameters) if id(one) in ours]


def _lay(tensor: torch.Tensor, order: torch.memory_format) -> None:
    tensor.data = tensor.data.contiguous(memory_format=order)


def _lay_back(tensors: list) -> None:
    for tensor in tensors:
        _lay(tensor, torch.contiguous_format)


def _export(layer: nn.Module, state_dict: dict, prefix: str, _: Any) -> None:
    held = state_dict.get(f"{prefix}weight")
    if held is not None and not isinstance(held, nn.Parameter):  # keep_vars: the parameter itself
        state_dict[f"{prefix}weight"] = held.contiguous()


def _lay_moments(optimizer: torch.optim.Optimizer) -> None:
    """Converts moments to the memory format of their parameter."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            is_moment = torch.is_tensor(value) and value.dim() == 4
            if (
                is_moment
                and value.shape == parameter.shape
                and value.stride() != parameter.stride()
            ):
                laid = torch.empty_like(parameter, dtype=value.dtype)
                state[name] = laid.detach().copy_(value)


def _export_moments(optimizer: Any, state_dict: dict) -> dict:
    states = {
        key: {
            name: value.contiguous() if torch.is_tensor(value) and value.dim() == 4 else value
            for name, value in state.items()
        }
        for key, state in state_dict["state"].items()
    }
    return {**state_dict, "state": states}
