"""torch.compile of the nets' training forward, inside the parallel objects.

Only `forward` is compiled: hooks (mixed precision) run around it, and calls without gradients
(validation, rollouts) are not compiled, so that other batch sizes do not recompile. Inside a DDP
forward torch splits the graph at DDP's buckets, so that all-reduces overlap with the backward pass.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.errors import PlanError
from robomimic_ddp.training.step import module_call

BACKEND: Any = "inductor"
"""Tests replace it."""
OLDEST = (2, 6)
"""The compiler of torch 2.4 fails on image encoders, whose outputs are views (TensorAlias)."""


def install(nets: list, kind: str, left_out: list, undo: ExitStack) -> int:
    """Compiles the nets with trainable parameters, except `left_out`, until `undo` is closed;
    returns their number.

    kind: "true", or "reduce-overhead" for CUDA graphs, which need batches of one size.
    """
    chosen = [net for net in nets if parallel.has_trainable_parameters(net) and net not in left_out]
    for net in chosen:
        module_call.replace(net, _Compiled(net, kind), undo)
    return len(chosen)


class _Compiled:
    """A call of `net` whose forward is compiled."""

    def __init__(self, net: nn.Module, kind: str) -> None:
        self.net = net
        options: dict[str, Any] = {}
        if BACKEND == "inductor":
            # Draw from torch's generator, which is saved with a run.
            options["options"] = {"fallback_random": True}
            if kind == "reduce-overhead":
                options["options"]["triton.cudagraphs"] = True
        if kind == "reduce-overhead":
            options["dynamic"] = False
        self.forward = torch.compile(net.forward, backend=BACKEND, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "forward" in vars(self.net):  # replaced for a block
            return self.net._call_impl(*args, **kwargs)
        with swapped(self.net, "forward", self.forward):
            try:
                return self.net._call_impl(*args, **kwargs)
            except torch._dynamo.exc.BackendCompilerFailed as error:
                lines = str(error).strip().splitlines()  # the first names the backend alone
                reason = (lines[1:] or lines or ["no reason given"])[0]
                raise PlanError(
                    f"ddp.compile: the compiler failed on {type(self.net).__name__} ({reason}). "
                    "Train with ddp.compile=false, or repair the compiler "
                    "(`robomimic-ddp doctor` shows versions)."
                ) from error


def why_not(device: str, bucket_mb: float | None) -> str | None:
    """Return what torch.compile lacks on `device`, or None. bucket_mb: DDP's; None without DDP."""
    least = dist._DEFAULT_FIRST_BUCKET_BYTES / 2**20
    if bucket_mb is not None and bucket_mb < least:
        return (
            f"graphs are cut at DDP's buckets, of {least:g} MiB at least (ddp.kwargs.bucket_cap_mb)"
        )
    if torch.__version__ < OLDEST:
        return f"torch {torch.__version__} is too old for it (2.6 compiles image encoders, too)"
    if BACKEND != "inductor":
        return None
    try:
        torch.compile(_next)(torch.ones(2, device=device))
    except Exception as error:  # their classes differ between versions of torch
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = next((line for line in lines if " error:" in line), lines[0])
        return (
            f"torch's compiler does not work here ({reason.strip()[:200]}). It needs a C++ "
            "compiler (g++ or clang++) and Python's headers (package python3-dev), on a GPU also "
            "Triton and compute capability 7.0"
        )
    return None


def _next(x: torch.Tensor) -> torch.Tensor:
    """Return what any compiler can compute."""
    return x + 1


def why_not_in_parts(kind: str, device: Any) -> str | None:
    """Return why a step cannot have several backward passes, or None."""
    if kind != "reduce-overhead" or torch.device(device).type != "cuda":
        return None
    return (
        "CUDA graphs leave a micro-batch's gradients in memory that the next one overwrites, and "
        "torch stops or adds wrong numbers; ddp.compile=true can accumulate"
    )
