"""`backprop_for_loss` without one read-back for each parameter.

The host asks each gradient for its norm with `.item()`: on a GPU the program waits once for every
tensor. Here norms are added up on the device and read once, after the optimizer's step.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Collection
from typing import Any

import torch

KNOWN = {"c597491bb179ec44"}
"""Digests of the host functions that `update` stands for, without comments and docstring. All of
robomimic's lineage have one text; a fork that changed it keeps its own function.
"""


def stands_for(host: Any, known: Collection[str] = KNOWN) -> bool:
    """Whether `host` is a function of a `known` digest (a partial of one counts as it): `update`
    computes what those of KNOWN do.
    """
    while isinstance(host, functools.partial):
        host = host.func
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(host)))
    except (OSError, TypeError, SyntaxError):
        return False
    return digest(tree) in known


def digest(tree: ast.Module) -> str:
    """Digest of the first function of a module, however it is laid out or commented."""
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef):
        return ""
    function.decorator_list = []
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
) -> float:
    """One step of `optim`; the sum over `net`'s parameters of their squared gradient norms, after
    clipping to `max_grad_norm`. `scaler`: torch's GradScaler, which leaves a step out where a
    gradient has overflowed.
    """
    optim.zero_grad(set_to_none=True)
    (loss if scaler is None else scaler.scale(loss)).backward(retain_graph=retain_graph)
    if scaler is not None:
        scaler.unscale_(optim)
    gradients = [one.grad for one in net.parameters() if one.grad is not None]
    if max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_grad_norm)
    norms = torch._foreach_norm(gradients)
    total = torch.stack(norms).double().square().sum() if norms else torch.zeros(())
    if scaler is None:
        optim.step()
    else:
        scaler.step(optim)
        scaler.update()
    return total.item()
