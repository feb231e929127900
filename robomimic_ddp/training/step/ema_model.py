"""The averaged copy of the nets (EMA), for any version of diffusers.

diffusers has had two classes `EMAModel`: 0.11's takes `model=` and keeps a module `averaged_model`,
later ones take `parameters=` and keep a list `shadow_params`. A host works with one of them. Here
the arguments choose the class, with bitwise the same results, and the object has the names of both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from robomimic_ddp.errors import WrapError

Averaged = nn.Module | Iterable[torch.Tensor]


def averaged_copy(*args: Any, **settings: Any) -> AveragedModel | AveragedParameters:
    """diffusers' `EMAModel(model=nets, ...)` or `EMAModel(parameters=nets.parameters(), ...)`.

    A module is averaged as by diffusers 0.11; parameters, alone or with a module, as by later
    versions. Local: every rank averages its (equal) weights. Raises WrapError if neither is given.
    """
    if "parameters" in settings:
        return AveragedParameters(*args, **settings)
    if "model" in settings or (args and isinstance(args[0], nn.Module)):
        return AveragedModel(*args, **settings)
    if args:
        return AveragedParameters(*args, **settings)
    raise WrapError(
        "DDPUtils.averaged_copy was given neither model=NETS nor parameters=NETS.parameters(), so "
        "there is nothing to average. Give it what the host gave to EMAModel."
    )


class _Average:
    """Base of both classes; `shadow_params`: the averaged tensors, in parameter order."""

    shadow_params: list[torch.Tensor]
    optimization_step: int
    temp_stored_params: list[torch.Tensor] | None = None

    def get_decay(self, optimization_step: int) -> float:
        """The decay at step `optimization_step`."""
        step = max(0, optimization_step - self.update_after_step - 1)
        if step <= 0:
            return 0.0
        least, most = self._bounds()
        return max(least, min(self._warm_up(step), most))

    def _warm_up(self, step: int) -> float:
        return 1 - (1 + step / self.inv_gamma) ** -self.power

    def _bounds(self) -> tuple[float, float]:
        raise NotImplementedError

    @torch.no_grad()
    def copy_to(self, parameters: Averaged) -> None:
        """Writes the averages into `parameters`."""
        for parameter, average in zip(_tensors(parameters), self.shadow_params):
            parameter.data.copy_(average.to(parameter.device))

    def store(self, parameters: Averaged) -> None:
        """Keeps copies of `parameters` on the CPU until `restore`."""
        self.temp_stored_params = [
            parameter.detach().cpu().clone() for parameter in _tensors(parameters)
        ]

    @torch.no_grad()
    def restore(self, parameters: Averaged) -> None:
        """Restores what `store` kept. Raises RuntimeError, as diffusers does, without it."""
        if self.temp_stored_params is None:
            raise RuntimeError("restore(parameters) without a store(parameters) before it")
        for parameter, kept in zip(_tensors(parameters), self.temp_stored_params):
            parameter.data.copy_(kept)
        self.temp_stored_params = None

    def state_dict(self) -> dict[str, Any]:
        """Averages and counters under the names of current diffusers, which can load them."""
        least, most = self._bounds()
        return {
            "decay": most,
            "min_decay": least,
            "optimization_step": self.optimization_step,
            "update_after_step": self.update_after_step,
            "use_ema_warmup": getattr(self, "use_ema_warmup", True),
            "inv_gamma": self.inv_gamma,
            "power": self.power,
            "shadow_params": self.shadow_params,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a `state_dict` of either class or of diffusers."""
        state = copy.deepcopy(state_dict)
        shadows = state.pop("shadow_params", None)
        if shadows is not None:
            self.shadow_params = shadows
        least, most = self._bounds()
        self._set_bounds(state.pop("min_decay", least), state.pop("decay", most))
        for name, value in state.items():
            if name in vars(self):
                setattr(self, name, value)

    def _set_bounds(self, least: float, most: float) -> None:
        raise NotImplementedError


class AveragedModel(_Average):
    """As in diffusers 0.11: a module `averaged_model`; `decay` is that of the last step."""

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
        self._set_bounds(min_value, max_value)
        if device is not None:
            self.to(device=device)
        self.decay = 0.0
        self.optimization_step = 0

    def _bounds(self) -> tuple[float, float]:
        return self.min_value, self.max_value

    def _set_bounds(self, least: float, most: float) -> None:
        self.min_value, self.max_value = least, most

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
        values, own = list(values), list(self.averaged_model.parameters())
        if [value.shape for value in values] != [parameter.shape for parameter in own]:
            raise WrapError(
                f"shadow_params was given {len(values)} tensors; expected {len(own)} of the shapes "
                "of the averaged nets. They are those of other nets."
            )
        for parameter, value in zip(own, values):
            parameter.copy_(value)

    @torch.no_grad()
    def step(self, new_model: Averaged) -> None:
        """Updates the average by the nets, or by their parameters, without buffers."""
        self.decay = self.get_decay(self.optimization_step)
        for average, parameter in self._pairs(new_model):
            if parameter.requires_grad:
                average.mul_(self.decay)
                average.add_(parameter.data.to(average.dtype), alpha=1 - self.decay)
            else:
                average.copy_(parameter)
        if isinstance(new_model, nn.Module):
            buffers = dict(self.averaged_model.named_buffers())
            for name, buffer in new_model.named_buffers():
                buffers[name].copy_(buffer)
        self.optimization_step += 1

    def _pairs(self, new: Averaged) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """By name: positions differ if nets were wrapped again after the copy."""
        if not isinstance(new, nn.Module):
            return zip(self.shadow_params, _tensors(new))
        own, given = dict(self.averaged_model.named_parameters()), dict(new.named_parameters())
        for name in given:
            if name not in own:
                raise WrapError(
                    f"the nets have a parameter {name!r} that their averaged copy lacks, so it "
                    "would not be averaged. Make the average after the nets have their last form."
                )
        return [(own[name], parameter) for name, parameter in given.items()]

    def to(self, *args: Any, **kwargs: Any) -> None:
        """Moves the averages, as a module's `to`."""
        self.averaged_model = self.averaged_model.to(*args, **kwargs)


class AveragedParameters(_Average):
    """As in current diffusers: a list `shadow_params`; `decay` is the maximum."""

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
        self.shadow_params = [tensor.clone().detach() for tensor in _tensors(parameters)]
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

    def __getattr__(self, name: str) -> Any:
        if name != "averaged_model":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            "this average was made of parameters, so it has no module: averaged_model exists where "
            "the nets themselves are given, DDPUtils.averaged_copy(model=nets, ...), or where the "
            "host sets it."
        )

    def _bounds(self) -> tuple[float, float]:
        return self.min_decay, self.decay

    def _set_bounds(self, least: float, most: float) -> None:
        self.min_decay, self.decay = least, most

    def _warm_up(self, step: int) -> float:
        return super()._warm_up(step) if self.use_ema_warmup else (1 + step) / (10 + step)

    @torch.no_grad()
    def step(self, parameters: Averaged) -> None:
        """Updates the average by the parameters, or those of the nets."""
        self.optimization_step += 1
        self.cur_decay_value = self.get_decay(self.optimization_step)
        for average, parameter in zip(self.shadow_params, _tensors(parameters)):
            if parameter.requires_grad:
                average.sub_((1 - self.cur_decay_value) * (average - parameter))
            else:
                average.copy_(parameter)

    def to(self, device: Any = None, dtype: Any = None, non_blocking: bool = False) -> None:
        """Moves the averages; `dtype` is for floating-point ones only."""
        self.shadow_params = [
            tensor.to(device, dtype if tensor.is_floating_point() else None, non_blocking)
            for tensor in self.shadow_params
        ]

    def pin_memory(self) -> None:
        """Puts the averages into pinned memory."""
        self.shadow_params = [tensor.pin_memory() for tensor in self.shadow_params]


def _tensors(given: Averaged) -> list[torch.Tensor]:
    return list(given.parameters() if isinstance(given, nn.Module) else given)
