"""`ddp.profile=N`: torch's profiler over N steps of each rank, and a line on what limits them.

The trace is in the run directory, `profile/rank0.pt.trace.json.gz`, for https://ui.perfetto.dev and
TensorBoard.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from robomimic_ddp.distributed import atomic_files, group
from robomimic_ddp.monitoring.step_hooks import StepHook
from robomimic_ddp.monitoring.throughput import Pace, exposed_communication
from robomimic_ddp.terminal import warn

FOLDER = "profile"
_ANNOTATION = "is_user_annotation"
"""Older torch does not say it."""
_SETTLING_STEPS = 10
"""Steps before the profiled ones: first ones compile, choose kernels and fill caches."""
_BUSY = 0.8
"""Where a device is busy for at least this share of the time, it limits a step."""
_MUCH = 0.1
"""Else, where waiting has at least this share of a step, it is what to reduce first."""


@dataclass(frozen=True)
class Profile:
    """The time of a rank's profiled steps, and its shares. busy: share of time in which its GPU
    computed, or its CPU cores, `cores` of them; data, gradients: shares of waiting.
    """

    steps: int
    seconds: float
    busy: float
    data: float
    gradients: float
    on_gpu: bool
    cores: int
    is_rlds: bool = False

    def advice(self) -> str:
        """Return what to try first."""
        if self.busy >= _BUSY:
            device = "the GPU" if self.on_gpu else "the CPU"
            remedy = "ddp.precision=bf16, ddp.compile=true" if self.on_gpu else "more cores"
            return f"{device} limits the step: {remedy}"
        if self.data >= _MUCH:
            remedy = "ddp.workers=auto, smaller images"
            if self.is_rlds:
                remedy = "more cores, `robomimic-ddp prepare-data` if images are larger than needed"
            return f"data is late: {remedy}, a local disk"
        if self.gradients >= _MUCH:
            return "gradients are late: ddp.comm=bf16, ddp.accumulate, a larger batch"
        if self.on_gpu:
            return "launching limits the step: ddp.compile=reduce-overhead, a larger batch"
        return "cores are idle, or other programs use them: fewer ranks, or a larger batch"


def line(profiles: list[Profile]) -> str:
    """Return the line for the user: means over ranks, and the worst share of waiting for data."""
    first, count = profiles[0], len(profiles)
    mean = replace(
        first,
        seconds=max(profile.seconds for profile in profiles),
        busy=sum(profile.busy for profile in profiles) / count,
        data=max(profile.data for profile in profiles),
        gradients=sum(profile.gradients for profile in profiles) / count,
    )
    device = "GPU" if mean.on_gpu else f"{mean.cores} CPU core(s) of a rank"
    return (
        f"profile of {mean.steps} steps of {1000 * mean.seconds / mean.steps:.3g} ms: {device} "
        f"busy {mean.busy:.0%}, waiting for data {mean.data:.0%}, for gradients "
        f"{mean.gradients:.0%}; {mean.advice()}"
    )


class Profiler(StepHook):
    """Profiles `steps` steps of one train epoch. folder: for traces; cores: of this rank; is_rlds:
    whether the data is read without workers; pace: leaves out the profiler's start and end, which
    take seconds.
    """

    place = "profile"

    def __init__(
        self,
        steps: int,
        folder: Path,
        cores: int,
        is_rlds: bool,
        pace: Pace,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.steps, self.folder, self.cores, self.is_rlds = steps, folder, cores, is_rlds
        self._pace, self._clock = pace, clock
        self._done = 0
        self._profiler: Any = None
        self._began = self._cpu = self._last = self._waited = 0.0
        self._busy = 0.0
        self._measured: tuple[float, float, float] | None = None

    def batch(self, batch: Any) -> None:
        self._waited += self._clock() - self._last

    def after_step(self) -> None:
        self._done += 1
        entered = self._clock()
        if self._done == _SETTLING_STEPS:
            self._start()
        elif self._profiler is not None:
            is_last = self._done == _SETTLING_STEPS + self.steps
            if is_last:
                seconds = self._clock() - self._began
                self._measured = seconds, time.process_time() - self._cpu, self._waited
            self._profiler.step()
            if is_last:
                self._stop()
        self._last = self._clock()
        self._pace.leave_out(self._last - entered)

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        with warnings.catch_warnings():  # of warm-up, which has been, and of later cycles
            warnings.simplefilter("ignore", UserWarning)
            schedule = torch.profiler.schedule(wait=0, warmup=0, active=self.steps, repeat=1)
            self._profiler = torch.profiler.profile(
                activities=activities, schedule=schedule, on_trace_ready=self._write
            )
            self._profiler.start()
        self._began, self._cpu, self._waited = self._clock(), time.process_time(), 0.0

    def _write(self, profiler: Any) -> None:
        """Write the trace, and sum up the time in which the GPU computed."""
        if self._measured is None:  # the epoch has ended too early
            return
        self._busy = computed(profiler.events())
        path = self.folder / f"rank{group.rank()}.pt.trace.json.gz"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as temporary:
                plain = Path(temporary) / "trace.json"
                profiler.export_chrome_trace(str(plain))
                with atomic_files.atomic_open(path, "wb") as file, plain.open("rb") as trace:
                    with gzip.GzipFile(fileobj=file, mode="wb") as packed:
                        shutil.copyfileobj(trace, packed)
        except OSError as error:
            warn(f"the trace {path} could not be written: {error}. Training continues.")

    def _stop(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
        self._profiler = None

    def finish(self, reducers: Iterable) -> str:
        """Collective, after the epoch's last step: return the line on the profiled steps."""
        self._stop()
        measured = None
        if self._measured is not None:
            seconds, cpu, waited = self._measured
            on_gpu = torch.cuda.is_initialized()
            busy = self._busy if on_gpu else cpu / self.cores
            gradients = self.steps * (exposed_communication(reducers) or 0.0)
            shares = [min(1.0, part / seconds) for part in (busy, waited, gradients)]
            measured = Profile(self.steps, seconds, *shares, on_gpu, self.cores, self.is_rlds)
        profiles = group.gather_objects(measured)
        if None in profiles:
            return too_short(self.steps, self._done)
        return f"{line(profiles)}\nIts traces are in {self.folder}, for https://ui.perfetto.dev"


def least_steps(profiled: int) -> int:
    """Return how many steps an epoch needs for `profiled` of them to be profiled."""
    return _SETTLING_STEPS + profiled


def too_short(profiled: int, steps: int) -> str:
    """Return why nothing is profiled in `steps` steps of an epoch."""
    return (
        f"ddp.profile={profiled}: nothing is profiled in this epoch, which takes {steps} step(s); "
        f"expected {_SETTLING_STEPS} to settle and {profiled} more"
    )


def computed(events: Iterable[Any]) -> float:
    """Return the seconds in which a GPU computed, of a profiler's `events`.

    torch also gives a GPU the annotations of the program, each from its first kernel to its last
    one: a step would seem to compute from its begin to its end. NCCL's kernels may be waiting.
    """
    spans = (
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == DeviceType.CUDA
        and not getattr(event, _ANNOTATION, False)
        and not event.name.startswith("nccl")
    )
    return covered(spans) / 1e6


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of (start, end) `spans`."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
