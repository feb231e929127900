"""An epoch: its training or validation steps, and its rollouts."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from robomimic_ddp.distributed import fsdp, group, optimizer_ddp, rng
from robomimic_ddp.monitoring import (
    debug,
    history,
    metrics,
    nan_guard,
    progress_bar,
    step_hooks,
    throughput,
)
from robomimic_ddp.training import rollouts as _rollouts
from robomimic_ddp.training import run as _run

_VALIDATION = 0xEA1
"""Separates the streams of validation from others by the run's seed."""


def epoch_log(run_epoch: Callable) -> Callable:
    """Collective: decorates `run_epoch`: averages its log over ranks, weighted by samples, and adds
    the epoch's speed to a train log (see `throughput.over_ranks`).

    The main rank shows progress and appends the log to the run's `history.jsonl`. On several ranks
    validation draws from separate random streams, so that training does not depend on it. A rank
    whose loss is NaN or infinite raises LossError or DataError.
    """
    signature = inspect.signature(run_epoch)
    over_ranks = metrics.epoch_log(run_epoch, _part)

    @functools.wraps(run_epoch)
    def watched(*args: Any, **kwargs: Any) -> Any:
        run = _run.current()
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        if run is None or "model" not in call.arguments:
            return over_ranks(*args, **kwargs)
        epoch = _Epoch(run, call)
        with progress_bar.in_place_of_hosts(run_epoch, epoch.progress), epoch.random_streams():
            with epoch.weights(), step_hooks.installed(call.arguments["model"], epoch.hooks()):
                return epoch.finished(over_ranks(*args, **kwargs))

    recorded = history.recorded(
        watched, _directory_to_write, lambda: _run.current().plan.samples_per_step, _part
    )

    @functools.wraps(run_epoch)
    def as_long_as_planned(*args: Any, **kwargs: Any) -> Any:
        run = _run.current()
        call = signature.bind(*args, **kwargs)
        steps = call.arguments.get("num_steps")
        if run is not None and steps is not None and not call.arguments.get("validate"):
            call.arguments["num_steps"] = run.plan.steps_of(steps)
        return recorded(*call.args, **call.kwargs)

    return as_long_as_planned


def _part() -> Any:
    run = _run.current()
    return None if run is None else run.resume.part


def _directory_to_write() -> Path | None:
    run = _run.current()
    return run.directory if run is not None and group.is_main() else None


class _Epoch:
    """One call of the host's `run_epoch` in `run`."""

    def __init__(self, run: _run.Run, call: inspect.BoundArguments) -> None:
        self.run, self.model = run, call.arguments["model"]
        self.loader = history.loader_of(call.arguments)
        self.number = call.arguments.get("epoch")
        self.validates = bool(call.arguments.get("validate"))
        self.pace = throughput.Pace()
        part = None if self.validates else run.resume.part
        if part is not None:
            part.epoch = self.number
        self.done_before = 0 if part is None else part.steps
        self.progress = None
        known = not (self.validates or run.last_epoch is None) and isinstance(self.number, int)
        if group.is_main():
            self.progress = progress_bar.Progress(
                f"epoch {self.number}" + (" validation" if self.validates else ""),
                self.pace,
                run.plan.samples_per_step,
                done_before=self.done_before,
                epochs_left=max(0, run.last_epoch - self.number) if known else None,
                tells_end=not self.validates,
            )

    def hooks(self) -> Iterator[step_hooks.StepHook]:
        """The hooks of the epoch's steps."""
        options = self.run.options.values
        yield self.pace
        if self.run.pictures is not None and not self.validates:
            self.run.pictures.epoch = self.number if isinstance(self.number, int) else 0
            yield self.run.pictures
        if options.debug and not self.validates:
            yield debug.Printer(self.run.debugged, self.run.plan.device)
        if self.run.heartbeat is not None and not self.validates:
            yield self.run.heartbeat.in_epoch(self.number)
        if self.run.trains_in_parallel:
            may_overflow = options.precision == "fp16"
            yield nan_guard.Guard(self.loader, self.number, may_overflow, self.done_before)
        if self.progress is not None:
            yield self.progress

    def random_streams(self) -> Any:
        """Separate streams for validation; on one rank the host's, for bitwise the same results."""
        if not self.validates or not self.run.plan.several_ranks:
            return contextlib.nullcontext()
        number = self.number if isinstance(self.number, int) else 0
        return rng.forked(_VALIDATION, self.run.seed, self.run.plan.rank, number)

    def weights(self) -> Any:
        """Collective when validating sharded nets: whole weights, since ranks may have unequal
        numbers of batches.
        """
        return fsdp.whole(self.model) if self.validates else contextlib.nullcontext()

    def finished(self, result: Any) -> Any:
        """Collective when training: `result` of the host, with the epoch's speed in its log."""
        if self.validates:
            return result
        reducers = optimizer_ddp.reducers(self.model)
        paced = throughput.over_ranks(self.pace, reducers, self.run.plan.samples_per_step)
        self._warn_of_waiting(paced)
        if isinstance(result, tuple):  # (log, iterator) in some hosts
            return ({**result[0], **paced}, *result[1:])
        getattr(self.run.loaders.get("train"), "let_go", lambda: None)()
        return {**result, **paced}

    def _warn_of_waiting(self, paced: Mapping[str, float]) -> None:
        """Prints once in a run, on the main rank."""
        note = throughput.waiting_note(paced, self.pace.steps)
        if note and self.run.warned_of_waiting is False and group.is_main():
            print(note, flush=True)
            self.run.warned_of_waiting = True


def rollouts(rollout_with_stats: Callable) -> Callable:
    """Collective: decorates `rollout_with_stats`: splits the episodes over ranks, each with
    separate random streams; returns the statistics of all on every rank, the video on the main
    rank, which gives it to the host's logs.

    The main rank appends the statistics to the run's `history.jsonl`.
    """
    split = _rollouts.split_rollouts(rollout_with_stats, lambda: _run.current().seed)
    signature = inspect.signature(rollout_with_stats)

    @functools.wraps(rollout_with_stats)
    def with_weights(*args: Any, **kwargs: Any) -> Any:
        run = _run.current()
        with contextlib.nullcontext() if run is None else run.weights_for_acting():
            result = split(*args, **kwargs)
        if run is not None and run.pictures is not None and isinstance(result, tuple):
            epoch = signature.bind(*args, **kwargs).arguments.get("epoch")
            run.pictures.videos(result[-1], epoch)
        return result

    return history.recorded_rollouts(with_weights, _directory_to_write)
