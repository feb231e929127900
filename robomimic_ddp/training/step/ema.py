"""The averaged copy of the nets (EMA), for any version of diffusers.

diffusers has had two classes `EMAModel`: 0.11's takes `model=` and keeps a module `averaged_model`,
later ones take `parameters=` and keep a list `shadow_params`. A host works with one of them. Here
the arguments choose the class, and the object has the names of both. Decay and counters are those
of diffusers. The arithmetic is that of diffusers, to the bit; `update_in_one_pass` replaces it by
`average + (1 - decay) * (new - average)` in one kernel over all tensors, equal up to the last bits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from robomimic_ddp.distributed.gradients.fsdp import local
from robomimic_ddp.errors import WrapError
from robomimic_ddp.training.step.ema_average import Average, Averaged, Pairs, tensors_of


def averaged_copy(*args: Any, **settings: Any) -> AveragedModel | AveragedParameters:
    """Return the average for `EMAModel(model=nets, ...)` or `EMAModel(parameters=..., ...)`.

    A module is averaged as by diffusers 0.11; parameters, alone or with a module, as by later
    versions. Local: every rank averages its (equal) weights.
    """
    of_module = "model" in settings or (args and isinstance(args[0], nn.Module))
    if of_module and "parameters" not in settings:
        return AveragedModel(*args, **settings)
    return AveragedParameters(*args, **settings)


def update_in_one_pass(model: Any, undo: ExitStack) -> bool:
    """Update the average of `model` in one pass until `undo` is closed; False if it is not ours.

    A net that acts with the averages (`ema_nets`) shares their memory meanwhile, which saves a copy
    of all weights at every step.
    """
    ema = getattr(model, "ema", None)
    if not isinstance(ema, Average):
        return False
    ema._blend = _blend_in_one_pass
    undo.callback(delattr, ema, "_blend")
    if isinstance(ema, AveragedParameters):
        ema._share_memory(getattr(model, "ema_nets", None), undo)
    return True


def _blend_in_one_pass(pairs: Pairs, decay: float) -> None:
    averages = [local(average) for average, _ in pairs]
    new = [local(parameter.data) for _, parameter in pairs]
    if averages:
        new = [tensor.to(average) for tensor, average in zip(new, averages)]  # dtype and device
        torch._foreach_lerp_(averages, new, 1 - decay)


class AveragedModel(Average):
    """As in diffusers 0.11: a module `averaged_model`; `decay` is that of the last step."""

    bounds = "min_value", "max_value"

    def __init__(
        self,
        model: nn.Module,
        update_after_step: int = 0,
        inv_gamma: float = 1.0,
        power: float = 2 / 3,
        min_value: float = 0.0,
        max_value: float = 0.9999,
        device: Any = None,
    ) -> None:
        self.averaged_model = copy.deepcopy(model).eval()
        self.averaged_model.requires_grad_(False)
        self.update_after_step = update_after_step
        self.inv_gamma = inv_gamma
        self.power = power
        self.min_value, self.max_value = min_value, max_value
        if device is not None:
            self.to(device=device)
        self.decay = 0.0
        self.optimization_step = 0

    @property
    def cur_decay_value(self) -> float:
        """Current diffusers' name for `decay`."""
        return self.decay

    @property
    def shadow_params(self) -> list[torch.Tensor]:
        return list(self.averaged_model.parameters())

    @shadow_params.setter
    @torch.no_grad()
    def shadow_params(self, values: Iterable[torch.Tensor]) -> None:
        values, averages = list(values), list(self.averaged_model.parameters())
        if [value.shape for value in values] != [average.shape for average in averages]:
            raise WrapError(
                f"shadow_params was given {len(values)} tensors; expected {len(averages)} with "
                "the shapes of the averaged nets. Give those of the same nets."
            )
        for average, value in zip(averages, values):
            average.copy_(value)

    @torch.no_grad()
    def step(self, new_model: Averaged) -> None:
        """Update the average by the nets, or by their parameters, without buffers."""
        pairs = self._pairs(new_model)
        self.decay = self.get_decay(self.optimization_step)
        self._update(pairs, self.decay)
        if isinstance(new_model, nn.Module):
            buffers = dict(self.averaged_model.named_buffers())
            for name, buffer in new_model.named_buffers():
                buffers[name].copy_(buffer)
        self.optimization_step += 1

    @staticmethod
    def _blend(pairs: Pairs, decay: float) -> None:
        for average, parameter in pairs:
            average.mul_(decay)
            average.add_(parameter.data.to(average.dtype), alpha=1 - decay)

    def _pairs(self, new: Averaged) -> Pairs:
        """Pair by name: positions differ if nets were wrapped again after the copy."""
        if not isinstance(new, nn.Module):
            return list(zip(self.shadow_params, tensors_of(new)))
        averages, parameters = (
            dict(module.named_parameters()) for module in (self.averaged_model, new)
        )
        for name in parameters:
            if name not in averages:
                raise WrapError(
                    f"the nets have a parameter {name!r} that their averaged copy lacks, so it "
                    "would not be averaged. Make the average once the nets are complete."
                )
        return [(averages[name], parameter) for name, parameter in parameters.items()]

    def to(self, *args: Any, **kwargs: Any) -> None:
        """Move the averages, as a module's `to`."""
        self.averaged_model = self.averaged_model.to(*args, **kwargs)


class AveragedParameters(Average):
    """As in current diffusers: a list `shadow_params`; `decay` is the maximum."""

    bounds = "min_decay", "decay"

    def __init__(
        self,
        parameters: Averaged,
        decay: float = 0.9999,
        min_decay: float = 0.0,
        update_after_step: int = 0,
        use_ema_warmup: bool = False,
        inv_gamma: float = 1.0,
        power: float = 2 / 3,
        foreach: bool = False,
        model_cls: Any = None,
        model_config: Any = None,
        **older: Any,
    ) -> None:
        """`foreach` is ignored; older: max_value, min_value, device; others are ignored."""
        self.use_ema_warmup = use_ema_warmup or isinstance(parameters, nn.Module)
        self.shadow_params = [tensor.clone().detach() for tensor in tensors_of(parameters)]
        self.decay = decay if older.get("max_value") is None else older["max_value"]
        self.min_decay = min_decay if older.get("min_value") is None else older["min_value"]
        self.update_after_step = update_after_step
        self.inv_gamma = inv_gamma
        self.power = power
        self.foreach = foreach
        self.model_cls, self.model_config = model_cls, model_config
        self.optimization_step = 0
        self.cur_decay_value: float | None = None
        if older.get("device") is not None:
            self.to(device=older["device"])

    def _warm_up(self, step: int) -> float:
        return super()._warm_up(step) if self.use_ema_warmup else (1 + step) / (10 + step)

    @torch.no_grad()
    def step(self, parameters: Averaged) -> None:
        """Update the average by the parameters, or those of the nets."""
        self.optimization_step += 1
        self.cur_decay_value = self.get_decay(self.optimization_step)
        pairs = list(zip(self.shadow_params, tensors_of(parameters)))
        self._update(pairs, self.cur_decay_value)

    @staticmethod
    def _blend(pairs: Pairs, decay: float) -> None:
        for average, parameter in pairs:
            average.sub_((1 - decay) * (average - parameter))

    def _share_memory(self, nets: Any, undo: ExitStack) -> None:
        """Keep the averages in the memory of `nets`, if they are equal, until `undo` is closed."""
        parameters = list(nets.parameters()) if isinstance(nets, nn.Module) else []
        if len(parameters) != len(self.shadow_params):
            return
        pairs = list(zip(parameters, self.shadow_params))
        if not all(_is_equal(*pair) for pair in pairs):
            return
        for parameter, average in pairs:
            parameter.data = average
        undo.callback(self._part_from_nets)

    def _part_from_nets(self) -> None:
        self.shadow_params = [average.clone() for average in self.shadow_params]

    def to(self, device: Any = None, dtype: Any = None, non_blocking: bool = False) -> None:
        """Move the averages; `dtype` is for floating-point ones only."""
        self.shadow_params = [
            tensor.to(device, dtype if tensor.is_floating_point() else None, non_blocking)
            for tensor in self.shadow_params
        ]

    def pin_memory(self) -> None:
        """Put the averages into pinned memory."""
        self.shadow_params = [tensor.pin_memory() for tensor in self.shadow_params]


def _is_equal(parameter: torch.Tensor, average: torch.Tensor) -> bool:
    kinds = [(tensor.dtype, tensor.device) for tensor in (parameter, average)]
    return kinds[0] == kinds[1] and torch.equal(parameter, average)
