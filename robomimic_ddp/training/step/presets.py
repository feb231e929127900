"""What the preset `max` adds to `fast`, where it applies."""

from __future__ import annotations

import dataclasses

import torch

from robomimic_ddp.config.options import Options, ResolvedOptions
from robomimic_ddp.config.plan import RunPlan
from robomimic_ddp.distributed import comm_hooks, group
from robomimic_ddp.training.step import compile

_BF16_CAPABILITY = (8, 0)


def effective(resolved: ResolvedOptions, plan: RunPlan, any_parallel_net: bool) -> Options:
    """Collective: the options with those of preset `max` filled in that were left at their default.

    precision: bf16 on CUDA devices that compute in it; compile: on CUDA devices where nothing is
    missing for it, both on every rank; comm: bf16 between several ranks. Nothing for an algorithm
    without a parallel net, which trains as its host does.
    """
    values = resolved.values
    if values.preset != "max" or not any_parallel_net:
        return values
    added = {}
    on_gpu = plan.device.startswith("cuda")
    bucket_mb = values.bucket_mb if plan.mode == "ddp" else None
    can_compile = on_gpu and plan.mode != "dp"
    can_compile = can_compile and compile.why_not(plan.device, bucket_mb) is None
    told = group.gather_objects((on_gpu and _computes_in_bf16(plan.device), can_compile))
    in_bf16, compiles = map(all, zip(*told))
    if in_bf16:
        added["precision"] = "bf16"
    if compiles:
        added["compile"] = "true"
    if plan.several_ranks and comm_hooks.sends_bf16(plan.device):
        added["comm"] = "bf16"
    free = {name: value for name, value in added.items() if resolved.sources[name] == "default"}
    return dataclasses.replace(values, **free)


def _computes_in_bf16(device: str) -> bool:
    """Whether the GPU does; torch counts older ones, too, which only emulate it, at a loss."""
    if torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(device) >= _BF16_CAPABILITY


def added_by_max(resolved: ResolvedOptions, chosen: Options) -> str | None:
    """The plan's line on what preset `max` has added, and what not; None for other presets."""
    before = resolved.values
    if before.preset != "max":
        return None
    names = ("precision", "compile", "comm")
    new = [name for name in names if getattr(chosen, name) != getattr(before, name)]
    added = ", ".join(f"{name}={getattr(chosen, name)}" for name in new)
    why = {
        "precision": "needs a GPU with bf16",
        "compile": "needs GPUs, a compiler, and buckets of 1 MiB or more",
        "comm": "needs several ranks, and a torch that sends bf16",
    }
    given = [name for name in names if resolved.sources[name] != "default"]
    reasons = [f"{name} ({why[name]})" for name in names if name not in (*new, *given)]
    reasons += [f"{name} (set to {getattr(before, name)})" for name in given]
    left = f"; not {', '.join(reasons)}" if reasons else ""
    return f"preset max adds: {added or 'nothing'}{left}"
