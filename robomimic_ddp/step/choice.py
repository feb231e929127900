"""What the preset `max` adds to `fast`, where it applies."""

from __future__ import annotations

import dataclasses

import torch

from robomimic_ddp.options import Options, ResolvedOptions


def effective(resolved: ResolvedOptions, device: str, several_ranks: bool) -> Options:
    """The options with those of preset `max` filled in that were left at their default.

    precision: bf16 on a CUDA device that computes in it; comm: bf16 between several ranks.
    """
    values = resolved.values
    if values.preset != "max":
        return values
    added = {}
    if device.startswith("cuda") and torch.cuda.is_bf16_supported():
        added["precision"] = "bf16"
    if several_ranks:
        added["comm"] = "bf16"
    free = {name: value for name, value in added.items() if resolved.sources[name] == "default"}
    return dataclasses.replace(values, **free)
