"""Updates the averaged copy (ours, or diffusers' EMAModel) in one pass over all parameters.

Decay and counters are those of the host's object. `shadow + (1 - decay) * (new - shadow)` replaces
`shadow - (1 - decay) * (shadow - new)` or `decay * shadow + (1 - decay) * new`: the same up to the
last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed.fsdp import local
from robomimic_ddp.training.step.ema_model import AveragedModel, AveragedParameters

_NEEDED = {
    "shadow_params": {"shadow_params", "optimization_step", "cur_decay_value"},
    "averaged_model": {"averaged_model", "optimization_step", "decay"},
}


def install(model: Any, undo: ExitStack) -> bool:
    """Replaces `step` of the model's average; False if it has none known, or a changed one."""
    ema = getattr(model, "ema", None)
    kind = _kind(ema)
    if kind is None:
        return False
    step = _step_model
    if kind == "shadow_params":
        step = _step_shadows
        _share_memory(ema, getattr(model, "ema_nets", None), undo)
        undo.enter_context(swapped(ema, "copy_to", partial(_copy_shadows, ema, ema.copy_to)))
    undo.enter_context(swapped(ema, "step", partial(step, ema, ema.step)))
    return True


def _kind(ema: Any) -> str | None:
    """Its API; None for a host's class, which may average otherwise."""
    of_diffusers = type(ema).__name__ == "EMAModel" and type(ema).__module__.startswith("diffusers")
    known = of_diffusers or type(ema) in (AveragedModel, AveragedParameters)
    if not known or {"step", "copy_to"} & set(vars(ema)):
        return None
    return next((kind for kind, names in _NEEDED.items() if names <= set(vars(ema))), None)


def _share_memory(ema: Any, nets: Any, undo: ExitStack) -> None:
    """Makes the net of the averages share their memory, which saves a copy every step."""
    if not isinstance(nets, nn.Module):
        return
    parameters = list(nets.parameters())
    pairs = list(zip(parameters, ema.shadow_params))
    if not _alike(parameters, ema.shadow_params) or not all(torch.equal(*pair) for pair in pairs):
        return
    for parameter, shadow in pairs:
        parameter.data = shadow

    def part() -> None:
        ema.shadow_params = [shadow.clone() for shadow in ema.shadow_params]

    undo.callback(part)


@torch.no_grad()
def _step_shadows(ema: Any, host_step: Callable, parameters: Any) -> None:
    """Current diffusers' `step(parameters)`, over a list of shadow tensors."""
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    parameters = list(parameters)
    if not _alike(parameters, ema.shadow_params):
        host_step(parameters)
        return
    ema.optimization_step += 1
    ema.cur_decay_value = ema.get_decay(ema.optimization_step)
    _blend(list(zip(ema.shadow_params, parameters)), 1 - ema.cur_decay_value)


@torch.no_grad()
def _copy_shadows(ema: Any, host_copy: Callable, parameters: Iterable[nn.Parameter]) -> None:
    """`copy_to(parameters)`, which have nothing to copy where they share the averages' memory."""
    parameters = list(parameters)
    pairs = zip(parameters, ema.shadow_params)
    if any(local(one).data_ptr() != local(other).data_ptr() for one, other in pairs):
        host_copy(parameters)


@torch.no_grad()
def _step_model(ema: Any, host_step: Callable, new_model: Any) -> None:
    """diffusers 0.11's `step(new_model)`, over a module `averaged_model`."""
    if not isinstance(new_model, nn.Module):  # ours also takes parameters
        host_step(new_model)
        return
    new, averaged = (dict(one.named_parameters()) for one in (new_model, ema.averaged_model))
    pairs = [(averaged.get(name), parameter) for name, parameter in new.items()]
    own = dict(ema.averaged_model.named_buffers())
    buffers = list(new_model.named_buffers())
    if not _alike(*zip(*pairs)) or any(name not in own for name, _ in buffers):
        host_step(new_model)
        return
    ema.decay = ema.get_decay(ema.optimization_step)
    _blend(pairs, 1 - ema.decay)
    for name, buffer in buffers:
        own[name].copy_(buffer)
    ema.optimization_step += 1


def _blend(pairs: list, weight: float) -> None:
    """`averaged += weight * (new - averaged)`; copies a frozen parameter, as diffusers does."""
    trained = [(local(one.data), local(new.data)) for one, new in pairs if new.requires_grad]
    if trained:
        averaged, new = map(list, zip(*trained))
        torch._foreach_lerp_(averaged, new, weight)
    for one, new in pairs:
        if not new.requires_grad:
            one.copy_(new)


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether shape, dtype and device are equal."""
    return len(ours) == len(theirs) and all(
        one is not None
        and one.shape == other.shape
        and one.dtype == other.dtype
        and one.device == other.device
        for one, other in zip(ours, theirs)
    )
