"""What is changed on a model for the time of its training."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from robomimic_ddp import algo as host_algo
from robomimic_ddp.errors import PlanError
from robomimic_ddp.options import Options
from robomimic_ddp.step import averaging, optimizers, quick
from robomimic_ddp.step.accumulation import Accumulation
from robomimic_ddp.step.backward import NAME, Backward, host_module
from robomimic_ddp.swapping import swapped


def prepare(model: Any, options: Options, is_parallel: bool, undo: ExitStack) -> str:
    """Changes how `model` takes its steps, until `undo` is closed; returns the plan's line on it.

    `is_parallel`: whether any of its nets went through `api.parallel`; other algorithms are left
    alone. Raises PlanError where micro-batches are asked for and cannot be.
    """
    module = host_module(model)
    if options.accumulate > 1:
        _require_accumulation(model, options, is_parallel, module)
    if not is_parallel:
        return f"preset: {options.preset}, without effect: {type(model).__name__} is left as it is"
    line = "preset: safe, the host's own arithmetic"
    update = None
    if options.preset != "safe":
        done = {"averages in one pass": averaging.install(model, undo)}
        done["fused optimizer"] = optimizers.install(model, undo)
        if module is not None and quick.stands_for(getattr(module, NAME)):
            update, done["gradient norm read once"] = quick.update, True
        said = ", ".join(name for name in done if done[name])
        line = f"preset: {options.preset} ({said or 'nothing that is known here to change'})"
    if module is not None and (update is not None or options.accumulate > 1):
        owned = [optimizer for _, optimizer in host_algo.named_optimizers(model)]
        backward = Backward(getattr(module, NAME), owned, update)
        undo.enter_context(swapped(module, NAME, backward))
        if options.accumulate > 1:
            Accumulation(model, options.accumulate, backward).install(undo)
    return line


def _require_accumulation(model: Any, options: Options, is_parallel: bool, module: Any) -> None:
    if is_parallel and module is not None:
        return
    reason = (
        f"its host has no utils.torch_utils.{NAME}(net, optim, loss)"
        if is_parallel
        else "none of its nets is made parallel, and only those are known to step once a batch"
    )
    raise PlanError(
        f"ddp.accumulate={options.accumulate}, but {type(model).__name__} cannot accumulate: "
        f"{reason}. Train it with ddp.accumulate=1 and a larger train.batch_size."
    )
