"""Updates the averaged copy (ours, or diffusers' EMAModel) in one pass over all parameters.

Decay and counters are those of the host's object. `shadow + (1 - decay) * (new - shadow)` replaces
`shadow - (1 - decay) * (shadow - new)` or `decay * shadow + (1 - decay) * new`: the same up to the
last bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from robomimic_ddp.config.swapped import swapped
from robomimic_ddp.distributed.fsdp import local
from robomimic_ddp.training.step.averaged_copy import AveragedModel, AveragedParameters

_NEEDED = {
    "shadow_params": {"shadow_params", "optimization_step", "cur_decay_value"},
    "averaged_model": {"averaged_model", "optimization_step", "decay"},
}


def install(model: Any, undo: ExitStack) -> bool:
    """Replaces `step` of the model's average until `undo` is closed; False if it has none of ours
    or diffusers', or a modified one.
    """
    ema = getattr(model, "ema", None)
    kind = _kind(ema)
    if kind == "shadow_params":
        average = _Shadow(ema)
        _share_memory(ema, getattr(model, "ema_nets", None), undo)
        undo.enter_context(swapped(ema, "copy_to", average.copy_to))
    elif kind == "averaged_model":
        average = _Averaged(ema)
    else:
        return False
    undo.enter_context(swapped(ema, "step", average.step))
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


class _Shadow:
    """Current diffusers: `step(parameters)`, `copy_to(parameters)`, a list of shadow tensors."""

    def __init__(self, ema: Any) -> None:
        self.ema, self._step, self._copy_to = ema, ema.step, ema.copy_to

    @torch.no_grad()
    def step(self, parameters: Any) -> None:
        if isinstance(parameters, nn.Module):
            parameters = parameters.parameters()
        parameters, ema = list(parameters), self.ema
        if not _alike(parameters, ema.shadow_params):
            self._step(parameters)
            return
        ema.optimization_step += 1
        ema.cur_decay_value = ema.get_decay(ema.optimization_step)
        _blend(list(zip(ema.shadow_params, parameters)), 1 - ema.cur_decay_value)

    @torch.no_grad()
    def copy_to(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = list(parameters)
        pairs = zip(parameters, self.ema.shadow_params)
        if any(local(one).data_ptr() != local(other).data_ptr() for one, other in pairs):
            self._copy_to(parameters)


class _Averaged:
    """diffusers 0.11: `step(new_model)`, a module `averaged_model`."""

    def __init__(self, ema: Any) -> None:
        self.ema, self._step = ema, ema.step

    @torch.no_grad()
    def step(self, new_model: Any) -> None:
        if not isinstance(new_model, nn.Module):  # ours also takes parameters
            self._step(new_model)
            return
        ema, new = self.ema, dict(new_model.named_parameters())
        averaged = dict(ema.averaged_model.named_parameters())
        pairs = [(averaged.get(name), parameter) for name, parameter in new.items()]
        own = dict(ema.averaged_model.named_buffers())
        buffers = list(new_model.named_buffers())
        if not _alike(*zip(*pairs)) or any(name not in own for name, _ in buffers):
            self._step(new_model)
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
