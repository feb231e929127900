"""The host's `backprop_for_loss`, called for a part of a step."""

from __future__ import annotations

import inspect
import sys
from typing import Any, Callable, NamedTuple

from robomimic_ddp.config.swapped import swapped

NAME = "backprop_for_loss"
_NEEDED = {"net", "optim", "loss"}


class Part(NamedTuple):
    """A micro-batch's place in its step; `weight`: its share of the step's samples."""

    weight: float = 1.0
    first: bool = True
    last: bool = True


WHOLE = Part()


class Pending(float):
    """Stands for a step's gradient norm until its last micro-batch is done."""


def host_module(model: Any) -> Any:
    """The host's module that holds `backprop_for_loss`, or None where the host has none like it."""
    package = type(model).__module__.partition(".")[0]
    module = sys.modules.get(f"{package}.utils.torch_utils")
    found = getattr(module, NAME, None)
    if not callable(found) or not _NEEDED <= set(inspect.signature(found).parameters):
        return None
    return module


class Backward:
    """Stands in for `host`, the host's own function, while `optimizers` are stepped.

    Losses of a micro-batch count with its share. Gradients are dropped before the first one; those
    of the last are clipped, measured and stepped with, by `update`: the host's own function, or
    one that stands for it. With other optimizers it is the host's function. `scaler`: torch's
    GradScaler, for fp16.
    """

    def __init__(
        self,
        host: Callable,
        optimizers: list,
        update: Callable | None = None,
        scaler: Any = None,
    ) -> None:
        self.host, self.update, self.scaler = host, update or host, scaler
        self.part = WHOLE
        self.calls = 0
        self._signature = inspect.signature(host)
        self._own = {id(optimizer) for optimizer in optimizers}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._signature.bind(*args, **kwargs)
        optimizer, part = call.arguments["optim"], self.part
        self.calls += 1
        if id(optimizer) not in self._own:
            return self.host(*args, **kwargs)
        call.apply_defaults()
        if part == WHOLE:
            return self.update(*call.args, **call.kwargs)
        call.arguments["loss"] = call.arguments["loss"] * part.weight
        if not part.last:
            if part.first:
                optimizer.zero_grad()
            loss = call.arguments["loss"]
            loss = loss if self.scaler is None else self.scaler.scale(loss)
            loss.backward(retain_graph=call.arguments.get("retain_graph", False))
            return Pending("nan")
        with swapped(optimizer, "zero_grad", lambda *_, **__: None):
            return self.update(*call.args, **call.kwargs)
