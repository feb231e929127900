"""The arguments of the host's `run_epoch`: its loaders and number of steps."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from robomimic_ddp.errors import RobomimicDDPError


def argument(call: inspect.BoundArguments, name: str) -> Any:
    """Return an argument of the host's `run_epoch`; an error where it has no such parameter."""
    if name not in call.arguments:
        raise RobomimicDDPError(
            f"run_epoch{call.signature} has no parameter {name!r}, so its log cannot be averaged "
            "over ranks. Name it as robomimic does: run_epoch(model, data_loader, epoch, "
            "validate=False, num_steps=None, ...)."
        )
    return call.arguments[name]


def loader_of(arguments: Mapping[str, Any]) -> Any:
    """Return the loader that counts the steps of the host's `run_epoch`: `data_loader` (of a dict
    the first), or the first of `data_loaders`; None if it has neither.
    """
    several = arguments.get("data_loaders")
    loader = several[0] if several else arguments.get("data_loader")
    return next(iter(loader.values()), None) if isinstance(loader, Mapping) else loader


def take_share(call: inspect.BoundArguments) -> None:
    """The validation loader becomes this rank's share, `num_steps` its length (DROID: not None)."""
    loaders, loader = argument(call, "data_loader"), loader_of(call.arguments)
    if not hasattr(loader, "limited"):
        return  # the host's DataLoader: on one rank, or not made by the seam
    steps = argument(call, "num_steps")
    if isinstance(loaders, Mapping):
        shares = {name: part.limited(steps) for name, part in loaders.items()}
        call.arguments["data_loader"], share = shares, next(iter(shares.values()))
    else:
        call.arguments["data_loader"] = share = loader.limited(steps)
    call.arguments["num_steps"] = len(share)
    if call.arguments.get("data_loader_iter") is not None:
        call.arguments["data_loader_iter"] = iter(share)
