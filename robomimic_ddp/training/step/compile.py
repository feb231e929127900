"""torch.compile of the nets' training forward, inside the parallel objects.

Only `forward` is compiled: hooks (mixed precision) run around it, and calls without gradients
(validation, rollouts) are not compiled, so that other batch sizes do not recompile. Inside a DDP
forward torch splits the graph at DDP's buckets, so that all-reduces overlap with the backward pass.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import parallel
from robomimic_ddp.errors import PlanError
from robomimic_ddp.training.step import module_call

BACKEND: Any = "inductor"
"""Tests replace it."""
_LEAST_CAPABILITY = (7, 0)


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
        more: dict[str, Any] = {}
        if BACKEND == "inductor":
            # Draw from torch's generator, which is saved with a run.
            more["options"] = {"fallback_random": True}
            if kind == "reduce-overhead":
                more["options"]["triton.cudagraphs"] = True
        if kind == "reduce-overhead":
            more["dynamic"] = False
        self.forward = torch.compile(net.forward, backend=BACKEND, **more)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "forward" in vars(self.net):  # replaced for a block
            return self.net._call_impl(*args, **kwargs)
        with swapped(self.net, "forward", self.forward):
            try:
                return self.net._call_impl(*args, **kwargs)
            except torch._dynamo.exc.BackendCompilerFailed as error:
                first = (str(error).strip().splitlines() or ["no reason given"])[0]
                raise PlanError(
                    f"ddp.compile: the compiler failed on {type(self.net).__name__} ({first}). "
                    "Train with ddp.compile=false, or repair the compiler "
                    "(`robomimic-ddp doctor` shows versions)."
                ) from error


def why_not(device: str, bucket_mb: float | None) -> str | None:
    """What torch.compile lacks on `device`, or None. bucket_mb: DDP's; None without DDP."""
    least = dist._DEFAULT_FIRST_BUCKET_BYTES / 2**20
    if bucket_mb is not None and bucket_mb < least:
        return (
            f"graphs are cut at DDP's buckets, of {least:g} MiB at least (ddp.kwargs.bucket_cap_mb)"
        )
    if not module_call.can_be_replaced():
        return f"torch {torch.__version__} is too old for it (2.1 has it)"
    if BACKEND != "inductor":
        return None
    if shutil.which("gcc") is None and shutil.which("clang") is None and not _cpp_compiler():
        return "there is no C++ compiler (g++ or clang++) on the PATH"
    on_gpu = str(device).startswith("cuda")
    if not on_gpu and not _cpp_compiler():
        return "there is no working C++ compiler (g++ or clang++)"
    missing = (
        _missing_header("c", "Python.h") if on_gpu else _missing_header("c++", "Python.h", "omp.h")
    )
    if missing is not None or not on_gpu:
        return missing
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "the GPU is older than what Triton compiles for (compute capability 7.0)"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None


def why_not_in_parts(kind: str, device: Any) -> str | None:
    """Why a step cannot have several backward passes, or None."""
    if kind != "reduce-overhead" or torch.device(device).type != "cuda":
        return None
    return (
        "CUDA graphs leave a micro-batch's gradients in memory that the next one overwrites, where "
        "torch stops, or adds wrong numbers; ddp.compile=true accumulates"
    )


def _missing_header(language: str, *headers: str) -> str | None:
    """The compiler's error for the headers of compiled code, or None, before torch fails."""
    found = filter(None, map(shutil.which, ("g++", "clang++", "gcc", "clang")))
    compiler = next(found, None)
    if compiler is None:  # known to torch only
        return None
    include = sysconfig.get_paths()["include"]
    command = [compiler, "-fsyntax-only", "-x", language, "-I", include, "-"]
    text = "".join(f"#include <{header}>\n" for header in headers)
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler} does not work ({error})"
    if done.returncode == 0:
        return None
    said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
    return (
        f"{compiler} cannot compile what torch makes ({said[:200]}); Python's headers are in the "
        f"package python3-dev, expected in {include}"
    )


def _cpp_compiler() -> bool:
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        return bool(get_cpp_compiler())
    except ImportError:  # elsewhere in other versions of torch
        return shutil.which("g++") is not None or shutil.which("clang++") is not None
    except Exception:  # torch's error without a compiler, whose class differs by version
        return False
