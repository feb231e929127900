"""An epoch: its training or validation steps, and its rollouts."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from robomimic_ddp.config.host import host_edits
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import group, host_algo, main_rank, rng, watchdog
from robomimic_ddp.distributed.gradients import fsdp, optimizer_ddp
from robomimic_ddp.errors import WrapError
from robomimic_ddp.monitoring import (
    debug,
    metrics,
    nan_guard,
    profiler,
    progress_bar,
    step_hooks,
    throughput,
)
from robomimic_ddp.monitoring.records import history
from robomimic_ddp.monitoring.step_logs import EpochPart
from robomimic_ddp.terminal import print_clean, warn
from robomimic_ddp.training import rollouts as _rollouts
from robomimic_ddp.training import run as _run
from robomimic_ddp.training.epoch_arguments import argument, loader_of, take_share

_VALIDATION = 0xEA1
"""Separates the streams of validation from others by the run's seed."""


def epoch_log(run_epoch: Callable) -> Callable:
    """Collective: decorates `run_epoch`: averages its log over ranks, weighted by samples, and adds
    the epoch's speed to a train log (see `throughput.over_ranks`).

    The main rank shows progress and appends the log to the run's `history.jsonl`. On several ranks
    validation draws from separate random streams, so that training does not depend on it. A rank
    whose loss is NaN or infinite raises LossError or DataError. On one rank outside a run, or where
    `run_epoch` has no parameter `model`, the host's function is called unchanged; training outside
    a run on several ranks raises UnpatchedScript.
    """
    signature = inspect.signature(run_epoch)

    @functools.wraps(run_epoch)
    def in_run(*args: Any, **kwargs: Any) -> Any:
        run = _run.current()
        call = signature.bind(*args, **kwargs)
        if run is None and not call.arguments.get("validate"):
            host_edits.require_one_rank(run_epoch.__name__, sys._getframe(1).f_code)
        if run is None or (group.world_size() == 1 and "model" not in call.arguments):
            return run_epoch(*args, **kwargs)
        call.apply_defaults()
        run.output.writer.begin()
        epoch, started = _Epoch(run, call), time.perf_counter()
        with epoch.in_force(run_epoch):
            result = epoch.finished(run_epoch(*call.args, **call.kwargs))
        epoch.record(result, time.perf_counter() - started)
        return result

    in_run.is_epoch_log = True  # how a run recognises that it is patched
    return in_run


class _Epoch:
    """One call of the host's `run_epoch` in `run`; changes the loader and the number of steps in
    `call` to those of this rank and of what is left of the epoch.
    """

    def __init__(self, run: _run.Run, call: inspect.BoundArguments) -> None:
        arguments = call.arguments
        self.run, self.model = run, argument(call, "model")
        self.loader = loader_of(arguments)
        self.number = arguments.get("epoch")
        self.validates = bool(arguments.get("validate"))
        self.place = f"epoch {self.number} {'validation' if self.validates else 'train'}"
        self.is_logged = not self.validates or group.world_size() > 1
        self.part = EpochPart()
        if not self.validates:
            self.part = run.progress.part
            self.part.epoch = self.number
        self.done_before, self.samples_before = self.part.steps, self.part.before[1]
        self.stepped_before = 0 if run.guard is None else run.guard.steps
        self._set_steps(call)
        self.pace = throughput.Pace(counts_steps=self.is_logged and not self.validates)
        self.progress = self._progress() if group.is_main() else None
        self.profiler = None if self.validates else self._profiler()

    def _set_steps(self, call: inspect.BoundArguments) -> None:
        steps = call.arguments.get("num_steps")
        if steps is not None and not self.validates:
            number = self.number if isinstance(self.number, int) else 1
            call.arguments["num_steps"] = steps = self.run.plan.steps_of(steps, number)
        if steps is None and self.done_before:
            steps = self.part.total
        if steps is None and (self.done_before or self.run.output.directory is not None):
            steps = len(self.loader)
        self.steps = steps
        if self.validates:
            take_share(call)
        elif self.done_before:
            argument(call, "num_steps")
            # Those that are left; a number, since DROID's accepts no None.
            call.arguments["num_steps"] = max(0, steps - self.done_before)
        elif call.arguments.get("num_steps", 0) is None:
            loader = argument(call, "data_loader") if self.loader is None else self.loader
            self.part.total = len(loader)

    def _progress(self) -> progress_bar.Progress:
        known = not (self.validates or self.run.progress.last_epoch is None) and isinstance(
            self.number, int
        )
        return progress_bar.Progress(
            f"epoch {self.number}" + (" validation" if self.validates else ""),
            self.pace,
            self.run.plan.samples_per_step,
            done_before=self.done_before,
            epochs_left=max(0, self.run.progress.last_epoch - self.number) if known else None,
            tells_end=not self.validates,
        )

    def _profiler(self) -> profiler.Profiler | None:
        """Collective: return the profiler of the run's first train epoch under `ddp.profile`."""
        run = self.run
        if not run.options.profile or run.progress.profiled:
            return None
        left = main_rank.on_main(lambda: self.steps and self.steps - self.done_before)
        if left is not None and left < profiler.least_steps(run.options.profile):
            run.progress.profiled = not self.done_before  # the next epoch is a whole one
            main_rank.say(profiler.too_short(run.options.profile, left))
            return None
        run.progress.profiled = True
        directory = main_rank.on_main(lambda: run.output.directory)
        if directory is None:
            return None
        return profiler.Profiler(
            run.options.profile,
            directory / profiler.FOLDER,
            run.settings.cores,
            is_rlds=run.plan.data_workers is None,
            pace=self.pace,
        )

    @contextlib.contextmanager
    def in_force(self, run_epoch: Callable) -> Iterator[None]:
        """Collective when validating sharded nets: apply what the host's function runs under."""
        # Hosts call on_gradient_step in validation too, which steps per-batch schedules. Ranks
        # validate on unequal numbers of batches, so their learning rates would differ.
        waits = self.validates and self.is_logged
        methods = {"on_gradient_step": lambda *_: None} if waits else {}
        with (
            progress_bar.in_place_of_hosts(run_epoch, self.progress),
            self.random_streams(),
            self.weights(),
            step_hooks.installed(self.model, self.hooks(), methods),
        ):
            if self.is_logged:
                watchdog.reached(self.place)
            self.run.progress.in_train_epoch = not self.validates
            try:
                yield
            finally:
                self.run.progress.in_train_epoch = False

    def hooks(self) -> Iterator[step_hooks.StepHook]:
        """Yield the hooks of the epoch's steps."""
        options = self.run.options
        yield self.pace
        if self.run.output.pictures is not None and not self.validates:
            self.run.output.pictures.epoch = self.number if isinstance(self.number, int) else 0
            yield self.run.output.pictures
        if options.debug and not self.validates:
            yield debug.Printer(self.run.progress.debugged, self.run.plan.device)
        if self.run.output.heartbeat is not None and not self.validates:
            length = self.done_before, self.steps, self.run.progress.last_epoch
            yield self.run.output.heartbeat.in_epoch(self.number, *length)
        if self.run.trains_in_parallel:
            may_overflow = options.precision == "fp16"
            yield nan_guard.Guard(self.loader, self.number, may_overflow, self.done_before)
        if self.progress is not None:
            yield self.progress
        if self.is_logged:
            yield metrics.Recorder(self.model, self.part)
        if self.profiler is not None:
            yield self.profiler

    def random_streams(self) -> Any:
        """Give validation separate streams; one rank keeps the host's, for the same bits."""
        if not self.validates or not self.run.plan.several_ranks:
            return contextlib.nullcontext()
        number = self.number if isinstance(self.number, int) else 0
        return rng.forked(_VALIDATION, self.run.settings.seed, self.run.plan.rank, number)

    def weights(self) -> Any:
        """Collective when validating sharded nets: make weights whole; ranks may have unequal
        numbers of batches.
        """
        return fsdp.whole(self.model) if self.validates else contextlib.nullcontext()

    def finished(self, result: Any) -> Any:
        """Collective: return the host's `result` with all ranks' log, and in training its speed.
        Raises WrapError on a rank that has trained nothing.
        """
        self._require_steps()
        log, *rest = result if isinstance(result, tuple) else (result,)
        if self.is_logged:
            watchdog.reached(f"{self.place} log")
            if not self.validates:
                step_hooks.end(self.model)
                host_algo.make_buffers_equal(self.model)  # validation and rollouts use them
                self.part.after_training()
            batch_size = self.run.plan.samples_per_step
            log = metrics.of_all_steps(log, self.part, self.done_before > 0, batch_size)
            self.part.begin()
        if not self.validates:
            reducers = optimizer_ddp.reducers(self.model)
            paced = throughput.over_ranks(self.pace, reducers, self.run.plan.samples_per_step)
            self._warn_of_waiting(paced)
            if self.profiler is not None:
                main_rank.say(self.profiler.finish(reducers))
            log = {**log, **paced}
            if not isinstance(result, tuple):  # (log, iterator) in some hosts
                getattr(self.run.built.loaders.get("train"), "drop_iterator", lambda: None)()
        return (log, *rest) if isinstance(result, tuple) else log

    def _require_steps(self) -> None:
        """Raise WrapError on several ranks without a step; one process does what its host does.
        A resumed epoch may have no step left, and fp16 leaves out steps that overflow.
        """
        guard, batches = self.run.guard, self.part.steps - self.done_before
        if guard is None or self.validates or guard.steps > self.stepped_before:
            return
        finished_before = self.done_before and self.steps <= self.done_before
        if finished_before or self.run.options.precision == "fp16":
            return
        raise WrapError(
            f"{self.place} ended on rank {group.rank()} after {batches} batch(es) and no step of "
            "an optimizer. Expected steps of torch.optim optimizers, whose gradients are averaged: "
            "weights that are changed in another way differ between ranks. Step the optimizers in "
            "train_on_batch, and check that the loader gives batches on every rank."
        )

    def record(self, result: Any, seconds: float) -> None:
        """Append the epoch to the run's history, on the main rank."""
        if self.run.output.directory is None or not group.is_main():
            return
        samples = (self.steps - self.done_before) * self.run.plan.samples_per_step
        content = {
            "epoch": self.number,
            "phase": "valid" if self.validates else "train",
            "steps": self.steps,
            "samples": 0 if self.validates else self.samples_before + samples,
            "seconds": seconds,
            "samples_per_second": 0.0 if self.validates else samples / seconds,
            "log": dict(result[0] if isinstance(result, tuple) else result),
        }
        history.try_to_append(self.run.output.directory, content)
        self._warn_of_broken_loss(content["log"])

    def _warn_of_broken_loss(self, log: Mapping[str, Any]) -> None:
        """Print once in a run that is not stopped by `nan_guard.Guard`: a host's one process trains
        on with any loss.
        """
        loss = nan_guard.broken_loss(log)
        if loss is not None and self.run.progress.broken_since is None:
            self.run.progress.broken_since = self.number
            warn(
                f"{self.place}: the loss is {loss}. The training diverged, or its data "
                "contains NaN or infinity, and this and every later checkpoint may be useless. One "
                "process keeps training, as the host does; several ranks would stop and name the "
                "sample."
            )

    def _warn_of_waiting(self, paced: Mapping[str, float]) -> None:
        """Print once in a run, on the main rank, that training waits for data."""
        note = throughput.waiting_note(paced, self.pace.steps, self.run.plan.data_workers is None)
        if note and self.run.progress.warned_of_waiting is False and group.is_main():
            print_clean(note)
            self.run.progress.warned_of_waiting = True


def rollouts(rollout_with_stats: Callable) -> Callable:
    """Collective: decorates `rollout_with_stats`: splits the episodes over ranks, each with
    separate random streams; returns the statistics of all on every rank, the video on the main
    rank, which gives it to the host's logs.

    The main rank appends the statistics to the run's `history.jsonl`. Outside a run, and within
    other rollouts, the host's function is called unchanged. With `ddp.rollouts=evaluate` nothing is
    played, and there are no statistics; `rollouts.why_on_main` says when nothing is split.
    """
    signature = inspect.signature(rollout_with_stats)

    @functools.wraps(rollout_with_stats)
    def in_run(*args: Any, **kwargs: Any) -> Any:
        run = _run.current()
        if run is None or run.progress.in_rollouts:
            return rollout_with_stats(*args, **kwargs)
        run.output.writer.begin()
        call = signature.bind(*args, **kwargs)
        epoch = call.arguments.get("epoch")
        if run.options.rollouts == "evaluate" and epoch is not None:
            run.progress.to_evaluate = epoch
            return OrderedDict(), OrderedDict()
        acting = contextlib.nullcontext() if run.guard is None else run.guard.acting()
        with swapped(run.progress, "in_rollouts", True), run.weights_for_acting(), acting:
            why = _rollouts.why_on_main(run.config)
            result = _rollouts.split(rollout_with_stats, call, run.settings.seed, why)
        if run.output.pictures is not None and isinstance(result, tuple) and result:
            run.output.pictures.videos(result[-1], epoch)
        if run.output.directory is not None and group.is_main():
            history.append_rollouts(run.output.directory, epoch, result)
        return result

    return in_run
