"""What the preset `max` adds to `fast`, where it applies."""

from __future__ import annotations

import dataclasses

import torch

from robomimic_ddp import group
from robomimic_ddp.options import Options, ResolvedOptions
from robomimic_ddp.plan import RunPlan
from robomimic_ddp.step import communication, compilation


def effective(resolved: ResolvedOptions, plan: RunPlan, any_parallel_net: bool) -> Options:
    """Collective: the options with those of preset `max` filled in that were left at their default.

    precision: bf16 on a CUDA device that computes in it; compile: on CUDA devices where nothing is
    missing for it, on any rank; comm: bf16 between several ranks. Nothing for an algorithm without
    a parallel net, which trains as its host does.
    """
    values = resolved.values
    if values.preset != "max" or not any_parallel_net:
        return values
    added = {}
    on_gpu = plan.device.startswith("cuda")
    if on_gpu and torch.cuda.is_bf16_supported():
        added["precision"] = "bf16"
    bucket_mb = values.bucket_mb if plan.mode == "ddp" else None
    can_compile = on_gpu and plan.mode != "dp"
    can_compile = can_compile and compilation.why_not(plan.device, bucket_mb) is None
    if all(group.gather_objects(can_compile)):
        added["compile"] = "true"
    if plan.several_ranks and communication.sends_bf16(plan.device):
        added["comm"] = "bf16"
    free = {name: value for name, value in added.items() if resolved.sources[name] == "default"}
    return dataclasses.replace(values, **free)


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
