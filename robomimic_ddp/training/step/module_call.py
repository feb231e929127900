"""Replaces what calling a module runs, and keeps its class, its keys and its hooks.

Sets the attribute that `Module.compile` sets. Copies and pickles of the module drop it, so an
averaged copy computes as before, with separate weights.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from robomimic_ddp.config.monkeypatch import swapped

_ATTRIBUTE = "_compiled_call_impl"


def can_be_replaced() -> bool:
    """Return whether this torch has the attribute (2.1 and later)."""
    return hasattr(nn.Module, _ATTRIBUTE) and hasattr(nn.Module, "compile")


def replace(module: nn.Module, call: Callable, undo: ExitStack) -> None:
    """Until `undo` is closed, `module(...)` runs `call(...)` in train mode with gradients."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        if module.training and torch.is_grad_enabled():
            return call(*args, **kwargs)
        return module._call_impl(*args, **kwargs)

    undo.enter_context(swapped(module, _ATTRIBUTE, chosen))
