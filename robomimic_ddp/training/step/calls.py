"""What a module's call runs, replaced without touching its class, its keys or its hooks.

torch keeps the place for `Module.compile`: an attribute that copies and pickles of the module leave
behind, so an averaged copy computes plainly, with weights of its own.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Callable

import torch
from torch import nn

from robomimic_ddp.config.swapped import swapped

_PLACE = "_compiled_call_impl"


def can_be_replaced() -> bool:
    """Whether this torch has the place (2.1 and later)."""
    return hasattr(nn.Module, _PLACE) and hasattr(nn.Module, "compile")


def replace(module: nn.Module, call: Callable, undo: ExitStack) -> None:
    """Until `undo` is closed `module(...)` is `call(...)` in a training forward; without gradients,
    and in eval(), it stays what it is.
    """

    def chosen(*args: Any, **kwargs: Any) -> Any:
        if module.training and torch.is_grad_enabled():
            return call(*args, **kwargs)
        return module._call_impl(*args, **kwargs)

    undo.enter_context(swapped(module, _PLACE, chosen))
