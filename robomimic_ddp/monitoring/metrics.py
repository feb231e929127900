"""Step logs averaged over ranks, weighted by samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from robomimic_ddp.distributed import group
from robomimic_ddp.errors import RobomimicDDPError
from robomimic_ddp.monitoring.step_hooks import StepHook
from robomimic_ddp.monitoring.step_logs import BatchLogs, EpochPart


def mean_over_ranks(host_log: dict[str, Any], logs: BatchLogs, continued: bool) -> dict[str, Any]:
    """Collective: return the log of the epoch over all ranks, with equal keys, order and values on
    each.

    Keys logged per batch: the mean over all samples of all ranks that logged the key. Time_* and
    other numbers of the host's log: the mean over the ranks that have them (Time_Epoch is in the
    host's minutes). Where the host's log has another type, also None: the value of the lowest rank
    that has it. A rank without batches counts for its times only.
    continued: the host's log is of the rest of a resumed epoch, which may have no step; `logs` is
    of all of it.
    """
    parts = group.gather_objects((host_log, logs.totals))
    of_ranks = BatchLogs()
    for _, rank_totals in parts:
        of_ranks.add(0, rank_totals)
    totals = of_ranks.totals
    hosts = [rank_log for rank_log, _ in parts]
    # Per-batch keys first, as the host's log has them: the main rank may have had no batch.
    per_batch = [key for key in totals if continued or any(key in rank_log for rank_log in hosts)]
    rest = dict.fromkeys(key for rank_log in hosts for key in rank_log if key not in totals)
    means = {key: totals[key][0] / totals[key][1] for key in per_batch}
    merged: dict[str, Any] = {}
    for key in (*per_batch, *rest):
        values = [rank_log[key] for rank_log in hosts if key in rank_log]
        if not all(map(_is_number, values)):
            merged[key] = values[0]
        else:
            merged[key] = means[key] if key in means else float(np.mean(values))
    return merged


def _is_number(value: Any) -> bool:
    """Return whether the host's log has a number: not a flag, and no array of several."""
    if isinstance(value, (bool, np.bool_)):
        return False
    return isinstance(value, (int, float, np.number)) or getattr(value, "shape", None) == ()


def of_all_steps(
    log: dict[str, Any], part: EpochPart, continued: bool, batch_size: int
) -> dict[str, Any]:
    """Collective: return the log of the epoch over all ranks and steps, from the host's of its last
    part.

    On several ranks the mean over ranks (`mean_over_ranks`); on one the host's own, or, where the
    epoch was continued after a resume, the mean of each number over all of its steps (Time_* and
    what is not numbers: of the rest). batch_size: samples in a step of one rank.
    """
    if group.world_size() == 1 and part.logs.totals:  # it has begun on several ranks
        for step_log in part.step_logs:
            part.logs.add_step(batch_size, step_log)
    if part.logs.totals or group.world_size() > 1:
        return mean_over_ranks(log, part.logs, continued)
    if not continued:
        return log
    means = _means(part.step_logs).items()
    return {**log, **{key: mean for key, mean in means if _is_number(log.get(key, mean))}}


def _means(step_logs: list[dict[str, float]]) -> dict[str, float]:
    """Return the host's mean of each key over the steps that logged it."""
    keys = dict.fromkeys(key for log in step_logs for key in log)
    return {key: float(np.mean([log[key] for log in step_logs if key in log])) for key in keys}


class Recorder(StepHook):
    """Passes the batch and the log of every step of `model` to `part`."""

    place = "epoch log"

    def __init__(self, model: Any, part: EpochPart) -> None:
        if not hasattr(model, "log_info"):
            raise RobomimicDDPError(
                f"{type(model).__name__} has no method log_info; expected one that returns a "
                "step's log, as robomimic's do. Without it no loss can be averaged over ranks or "
                "checked. Give the algorithm that method."
            )
        self.part = part

    def done(self) -> None:
        self.part.steps += 1

    def step(self, step_log: dict[str, Any], batch: Any) -> dict[str, Any]:
        self.part.see(step_log, batch)
        return step_log

    def after_step(self) -> None:
        self.part.after_step()
