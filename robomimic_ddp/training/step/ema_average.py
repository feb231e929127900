"""What both averaged copies of `ema` share: the decay, and the names of diffusers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

Averaged = nn.Module | Iterable[torch.Tensor]
Pairs = list[tuple[torch.Tensor, torch.Tensor]]
"""(average, parameter) of each averaged tensor."""


class Average:
    """Base of both classes of `ema`; `shadow_params`: the averaged tensors, in parameter order."""

    shadow_params: list[torch.Tensor]
    optimization_step: int
    temp_stored_params: list[torch.Tensor] | None = None
    bounds: tuple[str, str]
    """The attributes with the least and the most decay."""
    _blend: Callable[[Pairs, float], None]

    def get_decay(self, optimization_step: int) -> float:
        """Return the decay at step `optimization_step`."""
        step = max(0, optimization_step - self.update_after_step - 1)
        if step <= 0:
            return 0.0
        least, most = (getattr(self, name) for name in self.bounds)
        return max(least, min(self._warm_up(step), most))

    def _warm_up(self, step: int) -> float:
        return 1 - (1 + step / self.inv_gamma) ** -self.power

    def _update(self, pairs: Pairs, decay: float) -> None:
        """Blend trained parameters into their averages; copy frozen ones, as diffusers does."""
        self._blend([pair for pair in pairs if pair[1].requires_grad], decay)
        for average, parameter in pairs:
            if not parameter.requires_grad:
                average.copy_(parameter)

    @torch.no_grad()
    def copy_to(self, parameters: Averaged) -> None:
        """Write the averages into `parameters`; torch skips tensors that share their memory."""
        for parameter, average in zip(tensors_of(parameters), self.shadow_params):
            parameter.data.copy_(average)

    def store(self, parameters: Averaged) -> None:
        """Keep copies of `parameters` on the CPU until `restore`."""
        self.temp_stored_params = [
            parameter.detach().cpu().clone() for parameter in tensors_of(parameters)
        ]

    @torch.no_grad()
    def restore(self, parameters: Averaged) -> None:
        """Restore what `store` kept. Raises RuntimeError, as diffusers does, without it."""
        if self.temp_stored_params is None:
            raise RuntimeError("restore(parameters) without a store(parameters) before it")
        for parameter, stored in zip(tensors_of(parameters), self.temp_stored_params):
            parameter.data.copy_(stored)
        self.temp_stored_params = None

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and counters under current diffusers' names; it can load them."""
        least, most = (getattr(self, name) for name in self.bounds)
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
        """Load a `state_dict` of either class or of diffusers."""
        state = copy.deepcopy(state_dict)
        shadows = state.pop("shadow_params", None)
        if shadows is not None:
            self.shadow_params = shadows
        for name, key in zip(self.bounds, ("min_decay", "decay")):
            setattr(self, name, state.pop(key, getattr(self, name)))
        for name, value in state.items():
            if name in vars(self):
                setattr(self, name, value)


def tensors_of(averaged: Averaged) -> list[torch.Tensor]:
    """Return the parameters of a module, or a list of what are parameters."""
    return list(averaged.parameters() if isinstance(averaged, nn.Module) else averaged)
