"""The host's `backprop_for_loss`, called for a part of a step, without a read-back per parameter.

The host asks each gradient for its norm with `.item()`: on a GPU the program waits once for every
tensor. Here norms are added up on the device and read once, with the loss, for the step's log.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch

from robomimic_ddp.distributed import host_algo
from robomimic_ddp.distributed.gradients import fsdp, optimizer_ddp
from robomimic_ddp.errors import PlanError

NAME = "backprop_for_loss"
_NEEDED = {"net", "optim", "loss"}


class Part(NamedTuple):
    """A micro-batch's place in its step; `weight`: its share of the step's samples."""

    weight: float = 1.0
    last: bool = True


WHOLE = Part()


class Pending(float):
    """Stands for a step's gradient norm until its last micro-batch is done."""


def host_module(model: Any) -> Any:
    """Return the host's module with `backprop_for_loss`, or None if the host has none."""
    package = type(model).__module__.partition(".")[0]
    module = sys.modules.get(f"{package}.utils.torch_utils")
    function = getattr(module, NAME, None)
    if not callable(function) or not _NEEDED <= set(inspect.signature(function).parameters):
        return None
    return module


class Backward:
    """Stands in for `host`, the host's own function, while `optimizers` are stepped.

    Losses of a micro-batch count with its share. That of a step's last one passes through what
    averages the optimizer's gradients over ranks, if its nets do not. Gradients are dropped before
    the first one. With the last one, their sum is clipped, measured and stepped with, by `update`:
    the host's own function, or one that stands for it. With other optimizers it is the host's.
    `scaler`: torch's GradScaler, for fp16.
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
        self.has_gradients = False
        """Whether gradients of this step's earlier parts wait for its last one."""
        self.calls = 0
        self._is_stepping = False
        self._signature = inspect.signature(host)
        self._own = {id(optimizer) for optimizer in optimizers}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._signature.bind(*args, **kwargs)
        optimizer, part = call.arguments["optim"], self.part
        self.calls += 1
        if id(optimizer) not in self._own:
            return self.host(*args, **kwargs)
        call.apply_defaults()
        if part != WHOLE:
            call.arguments["loss"] = call.arguments["loss"] * part.weight
        over_ranks = optimizer_ddp.of(optimizer)
        if part.last and over_ranks is not None:
            call.arguments["loss"] = over_ranks.average_in_backward(call.arguments["loss"])
        if part.last:
            self._is_stepping = True
            try:
                return self.update(*call.args, **call.kwargs)
            finally:
                self._is_stepping = False
        if not self.has_gradients:
            optimizer.zero_grad()
        loss = call.arguments["loss"]
        loss = loss if self.scaler is None else self.scaler.scale(loss)
        loss.backward(retain_graph=call.arguments.get("retain_graph", False))
        self.has_gradients = True
        return Pending("nan")

    def before_step(
        self, model: Any, name: str, why: str, instead: str, in_parts: bool, *_: Any
    ) -> None:
        """torch's hook before a step of optimizer `name`: raises PlanError for one that is not of
        this function. in_parts: within the parts of a step only; else while `model` trains: in
        rollouts it may optimize what it likes.
        """
        is_watched = self.part != WHOLE if in_parts else host_algo.is_training(model)
        if is_watched and not self._is_stepping:
            raise PlanError(
                f"{type(model).__name__} stepped its optimizer {name} outside of {NAME} of the "
                f"host's torch_utils, so {why}. Expected TorchUtils.{NAME}(net, optim, loss, ...), "
                f"called by that name, and no other step. Call it so, or train with {instead}."
            )


KNOWN = {"c597491bb179ec44"}
"""Digests of the host functions that `update` stands for, without comments and docstring. All of
robomimic's lineage have one text; a fork that changed it keeps its own function.
"""


def stands_for(host: Any, known: Collection[str] = KNOWN) -> bool:
    """Return whether `host` is a function of a `known` digest (a partial of one counts as it, a
    decorated one does not): `update` computes what those of KNOWN do.
    """
    while isinstance(host, functools.partial):
        host = host.func
    if hasattr(host, "__wrapped__"):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(host)))
    except (OSError, TypeError, SyntaxError):
        return False
    return digest(tree) in known


def digest(tree: ast.Module) -> str:
    """Return the digest of the first function of a module, however it is laid out or commented."""
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef):
        return ""
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:]
    return hashlib.sha256(ast.unparse(function).encode()).hexdigest()[:16]


def update(
    net: torch.nn.Module,
    optim: torch.optim.Optimizer,
    loss: torch.Tensor,
    max_grad_norm: float | None = None,
    retain_graph: bool = False,
    scaler: Any = None,
) -> float | torch.Tensor:
    """One step of `optim`; the sum over `net`'s parameters of their squared gradient norms, after
    clipping to `max_grad_norm`; on a GPU a tensor, which `logged` reads. Collective where
    gradients are sharded. `scaler`: torch's GradScaler, which leaves a step out where a gradient
    has overflowed.
    """
    optim.zero_grad(set_to_none=True)
    (loss if scaler is None else scaler.scale(loss)).backward(retain_graph=retain_graph)
    if scaler is not None:
        scaler.unscale_(optim)
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    if max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_grad_norm)
    total = torch.zeros(())
    if gradients:  # torch refuses an empty list
        norms = torch._foreach_norm([fsdp.local(gradient) for gradient in gradients])
        total = fsdp.sum_over_shards(torch.stack(norms).double().square().sum(), gradients)
    if scaler is None:
        optim.step()
    else:
        scaler.step(optim)
        scaler.update()
    return total.item() if total.device.type == "cpu" else total


def logged(host: Callable, info: Any, *args: Any, **kwargs: Any) -> Any:
    """The host's log of a step, `host(info)`, with numbers for what `update` left on the GPU: by
    now averages and schedules are launched, too.
    """
    log = host(info, *args, **kwargs)
    for name, value in log.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            log[name] = value.item()
    return log
