"""Mixed precision: parallel nets compute in bf16 or fp16 under autocast and return fp32.

Weights, the loss, the optimizer and the averaged copy stay in fp32, which GPUs may multiply as TF32
(10 bits of mantissa): torch's default is yes in convolutions, no in matrix products.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import nn

from robomimic_ddp.config import tree

KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_ALWAYS = "always_call"
_RUNS_AFTER_FAILURES = _ALWAYS in inspect.signature(nn.Module.register_forward_hook).parameters
"""torch 2.0 calls no hook after a forward that failed."""


def install(nets: list, precision: str, undo: ExitStack) -> None:
    """Makes `nets` compute in `precision`, also in validation, until `undo` is closed."""
    for net in nets:
        device = next(net.parameters(), torch.empty(0)).device.type
        cast = _Cast(KINDS[precision], device)
        undo.callback(net.register_forward_pre_hook(cast.enter).remove)
        always = {_ALWAYS: True} if _RUNS_AFTER_FAILURES else {}
        undo.callback(net.register_forward_hook(cast.leave, **always).remove)


class _Cast:
    """Hooks around a net's forward on `device`, a type; thread-local for DataParallel."""

    def __init__(self, kind: torch.dtype, device: str) -> None:
        self.kind, self.device, self._local = kind, device, threading.local()

    def __reduce__(self) -> tuple:
        return _Cast, (self.kind, self.device)  # locks and contexts cannot be copied

    def enter(self, net: nn.Module, args: tuple) -> None:
        if not _RUNS_AFTER_FAILURES:
            self._close()  # open after a forward that failed
        context = torch.autocast(self.device, self.kind)
        context.__enter__()
        if not hasattr(self._local, "contexts"):
            self._local.contexts = []
        self._local.contexts.append(context)

    def leave(self, net: nn.Module, args: tuple, output: Any) -> Any:
        self._close()
        return tree.mapped(_as_fp32, output)

    def _close(self) -> None:
        contexts = getattr(self._local, "contexts", None)
        if contexts:
            contexts.pop().__exit__(None, None, None)


def _as_fp32(value: Any) -> Any:
    lower = isinstance(value, torch.Tensor) and value.dtype in KINDS.values()
    return value.float() if lower else value


def make_scaler(precision: str, device: torch.device | str) -> Any:
    """torch's GradScaler for fp16, whose gradients may underflow; else None."""
    if precision != "fp16":
        return None
    if not hasattr(torch.amp, "GradScaler"):
        return torch.cuda.amp.GradScaler()
    return torch.amp.GradScaler(torch.device(device).type)


def products_in_tf32(undo: ExitStack) -> None:
    """Let fp32 matrix products be computed in TF32 until `undo` is closed, unless the host has made
    settings that torch does not combine with this one.
    """
    with suppress(RuntimeError):
        undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high")


def tf32() -> str:
    """Return the plan's words on what this process computes in TF32."""
    try:
        products = torch.get_float32_matmul_precision() != "highest"
        convolutions = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # torch refuses where the host uses its newer settings, one a layer
        return "as the host has set it"
    computed = {"convolutions": convolutions, "matrix products": products}
    return ", ".join(f"{what} {'yes' if is_on else 'no'}" for what, is_on in computed.items())


def why_not(precision: str, device: torch.device | str) -> str | None:
    """Return what this torch lacks for `precision` on `device`, or None."""
    scales = hasattr(torch.amp, "GradScaler") or torch.device(device).type == "cuda"
    if precision != "fp16" or scales:
        return None
    return f"torch {torch.__version__} has fp16 on GPUs only (2.3 has it on the CPU, too)"
