"""`ddp.schedule=samples`: schedules that count steps take as many samples as configured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from torch.optim import lr_scheduler

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import host_algo
from robomimic_ddp.errors import PlanError

_STEPS = {lr_scheduler.LinearLR: "total_iters", lr_scheduler.CosineAnnealingLR: "T_max"}


def shorten(algo: Any, factor: float, undo: ExitStack) -> None:
    """Schedules that the host of `algo` steps after every batch come to each place after 1/`factor`
    of the steps. Those that it steps after every epoch stay. Raises PlanError for a schedule whose
    length cannot be found.
    """
    if factor == 1:
        return
    for _, part in host_algo.parts(algo):
        of_batches = getattr(part, "step_lr_schedulers_every_batch", None) or {}
        for name, schedule in _schedules(part):
            if of_batches.get(name):
                _shorten(schedule, factor, undo)


def present_rates(algo: Any) -> Iterator[float]:
    """Yield the learning rates that schedules of a function (LambdaLR) give at their place."""
    for _, part in host_algo.parts(algo):
        for _, schedule in _schedules(part):
            if isinstance(schedule, lr_scheduler.LambdaLR):
                for base_lr, factor_of in zip(schedule.base_lrs, schedule.lr_lambdas):
                    yield base_lr * factor_of(schedule.last_epoch)


def _schedules(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield each schedule of a part of an algorithm, with the name of its optimizer."""
    for name, members in (getattr(part, "lr_schedulers", None) or {}).items():
        for schedule in members if isinstance(members, (list, tuple)) else [members]:
            yield name, schedule


def _shorten(schedule: Any, factor: float, undo: ExitStack) -> None:
    if schedule is None:
        return
    if isinstance(schedule, lr_scheduler.LambdaLR):
        name = "lr_lambdas"
        value: Any = [_faster(factor_of, factor) for factor_of in schedule.lr_lambdas]
    elif isinstance(schedule, lr_scheduler.MultiStepLR):
        name, value = "milestones", Counter()
        for step, times in schedule.milestones.items():
            value[_steps(step, factor)] += times
    elif type(schedule) in _STEPS:
        name = _STEPS[type(schedule)]
        value = _steps(getattr(schedule, name), factor)
    else:
        raise PlanError(
            f"ddp.schedule=samples cannot shorten {type(schedule).__name__}, which the host steps "
            "after every batch: its length is not known. Use ddp.schedule=steps, and shorten it in "
            "the config."
        ).on_all_ranks()
    undo.enter_context(swapped(schedule, name, value))


def _steps(configured: int, factor: float) -> int:
    """Rounded up, as the run's steps are: a cosine that ended before them would rise again. (The
    quotient of whole numbers may be a last bit too large.)
    """
    return math.ceil(round(configured / factor, 6))


def _faster(rate: Callable[[float], float], factor: float) -> Callable[[int], float]:
    return lambda step: rate(step * factor)
