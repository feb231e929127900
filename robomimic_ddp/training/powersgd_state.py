"""Saves and restores PowerSGD's state.

Each rank's errors are as large as its gradients. They are gathered on the main rank only, which
writes them, and sent to the ranks one by one.
"""

from __future__ import annotations

from typing import Any

from robomimic_ddp.config import options
from robomimic_ddp.distributed import group, optimizer_ddp, tree_collectives
from robomimic_ddp.distributed.comm_hooks import PowerSGD, mean_errors
from robomimic_ddp.training import run as _run

_LAYOUT = ("bucket_mb", "channels_last", "find_unused_parameters", "comm")
"""Options that change the layout of buckets and factors."""


def capture(run: _run.Run) -> dict[str, Any] | None:
    """Collective: {"common": per net, "errors": per rank and net} on the main rank; None on others,
    and without compression.
    """
    compressors = _compressors(run)
    if not compressors:
        return None
    errors = tree_collectives.gathered({name: one.errors() for name, one in compressors.items()})
    if errors is None:
        return None
    common = {name: one.common() for name, one in compressors.items()}
    return {"common": common, "errors": errors}


def restore(run: _run.Run, model: Any, saved: dict[str, Any]) -> str | None:
    """Collective: restores the result of `capture`, once buckets are laid out; returns a line for
    the user, or None. Only the main rank's `saved` has the errors.

    On another number of ranks each starts with the mean of the saved errors, so that the ranks'
    mean gradient is complete. With other buckets the errors are dropped, which loses a part of the
    last steps' gradients.
    """
    compressors, kept = _compressors(run), saved.get("powersgd")
    if not compressors:
        return "gradients: what PowerSGD had not sent yet is dropped" if kept else None
    reason = _why_not(run, model, saved, compressors)
    if reason is not None:
        for one in compressors.values():
            one.begin_anew(saved["steps"])
        return f"gradients: PowerSGD starts again, since {reason}"
    world, errors = group.world_size(), kept.get("errors")
    if errors is not None and len(errors) != world:
        means = {name: mean_errors([rank[name] for rank in errors]) for name in compressors}
        errors = [means] * world
    own = tree_collectives.scattered(errors)
    reduced = {one.name: one.reduced for one in optimizer_ddp.reducers(model)}
    for name, one in compressors.items():
        device = reduced[name][0].device
        one.restore(kept["common"][name], own[name], device)
    if saved["world_size"] != world:
        return "gradients: each rank begins with the mean of what PowerSGD had not sent yet"
    return None


def _why_not(
    run: _run.Run, model: Any, saved: dict[str, Any], compressors: dict[str, PowerSGD]
) -> str | None:
    kept = saved.get("powersgd")
    if not kept:
        return "the saved run sent whole gradients"
    before_options = options.in_present_words(saved["options"])
    for name in _LAYOUT:
        before, now = before_options.get(name), getattr(run.options.values, name)
        if before != now:
            return f"ddp.{name} has changed from {before} to {now}"
    laid_out = all(one.arrival is None for one in optimizer_ddp.reducers(model))
    if set(kept["common"]) != set(compressors) or not laid_out:
        return "the saved run's buckets cannot be laid out again"
    return None


def _compressors(run: _run.Run) -> dict[str, PowerSGD]:
    return {} if run.communication is None else run.communication.powersgd
