"""What the preset `max` adds to `fast`, where it applies."""

from __future__ import annotations

import dataclasses

import torch

from robomimic_ddp.options import Options, ResolvedOptions
from robomimic_ddp.plan import RunPlan


def effective(resolved: ResolvedOptions, plan: RunPlan, any_parallel_net: bool) -> Options:
    """The options with those of preset `max` filled in that were left at their default.

    precision: bf16 on a CUDA device that computes in it; comm: bf16 between several ranks. Nothing
    for an algorithm without a parallel net, which trains as its host does.
    """
    values = resolved.values
    if values.preset != "max" or not any_parallel_net:
        return values
    added = {}
    if plan.device.startswith("cuda") and torch.cuda.is_bf16_supported():
        added["precision"] = "bf16"
    if plan.several_ranks:
        added["comm"] = "bf16"
    free = {name: value for name, value in added.items() if resolved.sources[name] == "default"}
    return dataclasses.replace(values, **free)
