"""Speed of an epoch's steps, and their waiting times, for the host's loggers.

The numbers are added to the train log under `Time_...`, which robomimic records as
`Timing_Stats/Train_...` in TensorBoard and wandb.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from robomimic_ddp.distributed import group, watchdog
from robomimic_ddp.monitoring.step_hooks import StepHook

NANOSECONDS = 1e-9
WAITED, ENOUGH_STEPS = 0.3, 20
"""A line is printed after at least this share of time waiting for data, and number of steps."""


class Pace(StepHook):
    """Times this rank's steps of one epoch; `clock` returns seconds. counts_steps: for the
    watchdog; ranks validate on unequal numbers of batches.
    """

    place = "pace"

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, counts_steps: bool = False
    ) -> None:
        self._clock, self._counts_steps = clock, counts_steps
        self.began = self.last_step = clock()
        self.steps = 0
        self.waited = 0.0

    def batch(self, batch: Any) -> None:
        self.waited += self._clock() - self.last_step
        if self._counts_steps:
            watchdog.stepped()

    def done(self) -> None:
        self.steps += 1
        self.last_step = self._clock()

    def leave_out(self, seconds: float) -> None:
        """Count `seconds` since the last step neither as training nor as waiting for data."""
        self.began += seconds
        self.last_step += seconds

    @property
    def seconds(self) -> float:
        """Seconds from the start to the end of the last step."""
        return self.last_step - self.began

    def data_share(self) -> float:
        """Share of time spent waiting for batches."""
        return self.waited / self.seconds if self.seconds else 0.0


def waiting_note(log: Mapping[str, float], steps: int, is_rlds: bool = False) -> str:
    """Return a line where an epoch's `log` (of `over_ranks`) shows a wait for data; else ""."""
    share = log.get("Time_Data_Wait_Share", 0.0)
    if share < WAITED or steps < ENOUGH_STEPS:
        return ""
    remedy = "ddp.workers=auto or smaller images"
    if is_rlds:  # read without workers
        remedy = (
            "more CPU cores, or images stored at observation.image_dim (`robomimic-ddp "
            "prepare-data`)"
        )
    return (
        f"note: ranks waited for data {share:.0%} of the epoch's time; to train faster: data on a "
        f"local disk, {remedy} (docs/troubleshooting.md)"
    )


@dataclass(frozen=True)
class _Measured:
    """Measurements of one rank: seconds, and bytes of GPU memory."""

    steps: int
    seconds: float
    waited: float
    exposed: float | None
    memory: int


def over_ranks(pace: Pace, reducers: Iterable, samples_per_step: int) -> dict[str, float]:
    """Collective: return the epoch's speed, equal on every rank; empty without a step.

    Time_Steps_Per_Second, Time_Samples_Per_Second: all ranks together. Time_Data_Wait_Share: the
    worst rank's share of its time. With DDP also Time_Communication_Share, the ranks' mean share of
    a step in which gradients are sent and nothing is computed, from torch's samples, and
    Time_Step_Slowest_Rank and ..._Fastest_Rank, seconds of a step without that (ranks wait for each
    other there). On GPUs Time_GPU_Memory_GB: the most allocated by a rank.
    """
    memory = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
    exposed = exposed_communication(reducers)
    measured = _Measured(pace.steps, pace.seconds, pace.waited, exposed, memory)
    ranks: list[_Measured] = [rank for rank in group.gather_objects(measured) if rank.seconds]
    if not ranks:
        return {}
    slowest = max(rank.seconds / rank.steps for rank in ranks)
    log = {
        "Time_Steps_Per_Second": 1 / slowest,
        "Time_Samples_Per_Second": samples_per_step / slowest,
        "Time_Data_Wait_Share": max(rank.waited / rank.seconds for rank in ranks),
    }
    if all(rank.exposed is not None for rank in ranks):
        steps = [(rank.seconds / rank.steps, rank.exposed or 0.0) for rank in ranks]
        own_work = [seconds - min(seconds, exposed) for seconds, exposed in steps]
        log["Time_Step_Slowest_Rank"], log["Time_Step_Fastest_Rank"] = max(own_work), min(own_work)
        shares = [min(1.0, exposed / seconds) for seconds, exposed in steps]
        log["Time_Communication_Share"] = sum(shares) / len(shares)
    if any(rank.memory for rank in ranks):
        log["Time_GPU_Memory_GB"] = max(rank.memory for rank in ranks) / 1e9
    return log


def exposed_communication(reducers: Iterable) -> float | None:
    """Return the seconds of a step in which gradients are sent while none is computed, over all
    `optimizer_ddp.reducers`; None if nothing is sent or torch has no data. torch samples the first
    ten steps and every hundredth.
    """
    times = [seconds for reducer in reducers if (seconds := _exposed(reducer)) is not None]
    return sum(times) if times else None


def _exposed(reducer: Any) -> float | None:
    if getattr(reducer, "message_seconds", None) is not None:
        return reducer.message_seconds
    stats = getattr(reducer.parallel, "_get_ddp_logging_data", dict)()
    if not stats.get("backward_comm_time"):
        return None
    overlap = stats.get("backward_compute_comm_overlap_time", 0)
    return max(0, stats["backward_comm_time"] - overlap) * NANOSECONDS
