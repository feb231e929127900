"""The host's `Algo` object as the retrofit sees it: nets, averaged weights, optimizers.

Read by attribute, since hosts differ: `nets` (all), `ema_nets` and `ema.shadow_params` (current
diffusers), `ema.averaged_model` (diffusers 0.11), `optimizers` (a dict of optimizers, or of lists
of them).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from robomimic_ddp import group


def named_state(algo: Any) -> list[tuple[str, torch.Tensor]]:
    """Every parameter and buffer of the nets and of the averaged copy, with a name that is equal on
    all ranks.
    """
    named = [
        (f"nets.{name}", tensor) for name, tensor in algo.nets.state_dict(keep_vars=True).items()
    ]
    for owner, attribute in ((algo, "ema_nets"), (getattr(algo, "ema", None), "averaged_model")):
        averaged = getattr(owner, attribute, None)
        if isinstance(averaged, nn.Module):
            named += [
                (f"{attribute}.{name}", tensor) for name, tensor in averaged.state_dict().items()
            ]
    shadow = getattr(getattr(algo, "ema", None), "shadow_params", None) or []
    named += [(f"ema.shadow_params[{index}]", tensor) for index, tensor in enumerate(shadow)]
    return [(name, tensor) for name, tensor in named if isinstance(tensor, torch.Tensor)]


def counters(algo: Any) -> dict[str, Any]:
    """What steers the next step and must agree over ranks: step counts of average and optimizers,
    learning rates.
    """
    counts: dict[str, Any] = {}
    step = getattr(getattr(algo, "ema", None), "optimization_step", None)
    if step is not None:
        counts["ema.optimization_step"] = int(step)
    for name, optimizer in named_optimizers(algo):
        state = next(iter(optimizer.state.values()), {})
        if "step" in state:
            counts[f"optimizer {name} step"] = int(state["step"])
        counts[f"optimizer {name} learning rates"] = [
            entry["lr"] for entry in optimizer.param_groups
        ]
    return counts


def steps(algo: Any) -> int:
    """Optimizer steps that the model has had; of several optimizers, the most that one has."""
    counts = [0]
    for _, optimizer in named_optimizers(algo):
        counts += [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    return max(counts)


def named_optimizers(algo: Any) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Each optimizer with its name in the host's dict; members of a list as `name[0]`, ..."""
    for name, optimizer in getattr(algo, "optimizers", {}).items():
        if isinstance(optimizer, (list, tuple)):
            yield from ((f"{name}[{index}]", one) for index, one in enumerate(optimizer))
        elif optimizer is not None:
            yield name, optimizer


def make_equal(algo: Any) -> None:
    """Collective: overwrites nets, buffers and averaged weights on all ranks with the main rank's,
    in place.
    """
    seen: set[int] = set()
    tensors = []
    for _, tensor in named_state(algo):
        if tensor.numel() and tensor.data_ptr() not in seen:  # tied parameters travel once
            seen.add(tensor.data_ptr())
            tensors.append(tensor)
    group.broadcast_tensors(tensors)
