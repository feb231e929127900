"""`robomimic-ddp sweep run`: trains the trials of a sweep, each on separate GPUs.

Any number of workers share a sweep; the lock of a trial (see study.py) keeps them apart. Trainings
save and stop when their worker was killed, and the next worker resumes them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

from robomimic_ddp import files
from robomimic_ddp.commands import training_process
from robomimic_ddp.commands.launch import torchrun
from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE
from robomimic_ddp.commands.sweep import show
from robomimic_ddp.commands.sweep.study import Sweep, Trial
from robomimic_ddp.config import end_with_parent, env, launch_env, machine
from robomimic_ddp.distributed import known_errors, rendezvous
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED, DataError
from robomimic_ddp.monitoring.records.run_files import REQUEUE
from robomimic_ddp.terminal import listed, print_clean

_POLL_SECONDS = 1.0
_ENDING_SECONDS = 60.0
"""How long trainings may take to save and stop whose worker or launcher was killed."""
_MOST_KILLS = 3
"""How often a training that a signal ended, as when memory runs out, is resumed."""
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class Job:
    """A trial that this worker trains. gpus: its CUDA_VISIBLE_DEVICES; log: its log, locked."""

    trial: Trial
    gpus: str
    log: IO[bytes]
    process: subprocess.Popen


class Worker:
    """Trains the remaining trials of `sweep`, one at a time on each of `gpus`, which are values of
    CUDA_VISIBLE_DEVICES. program: the arguments of Python that start a training.
    """

    def __init__(
        self,
        sweep: Sweep,
        gpus: Sequence[str],
        ranks: int = 1,
        program: Sequence[str] = ("-m", DOT_LIST_MODULE),
        poll: float = _POLL_SECONDS,
    ) -> None:
        self.sweep, self.gpus, self.ranks, self.poll = sweep, gpus, ranks, poll
        self.program = program
        self.jobs: dict[int, Job] = {}
        self.stopped: set[int] = set()
        """Trials that were stopped from outside: this worker does not begin them again."""
        self.kills: Counter[int] = Counter()
        self.waits_until = time.monotonic() + _ENDING_SECONDS
        """For interrupted trials whose training has not ended yet."""
        self.signal: str | None = None
        self.is_stopping = self.has_metric = self.has_announced_wait = False
        self.error: Exception | None = None
        """Why no more trials begin: the sweep was edited, or its folder cannot be written."""

    def run(self) -> int:
        """Train until no trial remains, and return the exit code: 1 if a trial has failed, 75 after
        a stop on request. Raises DataError or OSError, when the running trainings have ended, if
        the sweep was edited meanwhile, or its folder cannot be written.
        """
        with training_process.handling(_STOPS, self._on_signal):
            while self._begin_trials() or self.jobs:
                if self.signal is not None:
                    self._stop_trials(self.signal)
                for job in list(self.jobs.values()):
                    try:
                        self._check(job)
                    except (DataError, OSError) as error:
                        self._begin_no_more(error)
                time.sleep(self.poll)
        if self.error is not None:
            raise self.error
        trials = self.sweep.trials()
        print_clean("\n".join(show.summary(trials)))
        if self.signal is not None or self.stopped:
            return EXIT_STOPPED
        return EXIT_REFUSED if any(trial.state == "fail" for trial in trials) else EXIT_DONE

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number).name

    def _stop_trials(self, reason: str) -> None:
        """Ask the running trainings, once, to save and stop."""
        if self.is_stopping:
            return
        self.is_stopping = True
        for job in self.jobs.values():
            job.process.send_signal(signal.SIGTERM)
        print_clean(f"{reason}: {len(self.jobs)} trial(s) save and stop")

    def _begin_trials(self) -> bool:
        """Begin trials on free GPUs, interrupted trials first. Return whether any has begun, or
        may begin soon.
        """
        if self.signal is not None or self.error is not None:
            return False
        try:
            return self._begin_remaining()
        except (DataError, OSError) as error:
            self._begin_no_more(error)
            return False

    def _begin_no_more(self, error: Exception) -> None:
        self.error = self.error or error
        if self.jobs:
            print_clean(f"no new trials start; {len(self.jobs)} still training: {error}")

    def _begin_remaining(self) -> bool:
        trials = [trial for trial in self.sweep.trials() if self._is_remaining(trial)]
        trials.sort(key=lambda trial: (trial.state != "running", trial.number))
        interrupted = [trial for trial in trials if trial.state == "running"]
        is_waiting = self._is_waiting(interrupted)
        if is_waiting:  # a training that is ending may still use any GPU
            trials = interrupted
        busy = {job.gpus for job in self.jobs.values()}
        candidates = iter(trials)
        free = [gpus for gpus in self.gpus if gpus not in busy]
        begun = [any(self._begin(trial, gpus) for trial in candidates) for gpus in free]
        return any(begun) or is_waiting

    def _is_waiting(self, interrupted: list[Trial]) -> bool:
        """Return whether one of them may be ending: those of other workers look the same."""
        locked = [trial.name for trial in interrupted if trial.is_locked]
        if not locked or time.monotonic() >= self.waits_until:
            return False
        if not self.has_announced_wait:
            self.has_announced_wait = True
            print_clean(
                f"waiting, at most {_ENDING_SECONDS:.0f} s, for trainings that may be ending: "
                f"{listed(locked)}"
            )
        return True

    def _is_remaining(self, trial: Trial) -> bool:
        is_known = trial.number in self.jobs or trial.number in self.stopped
        return trial.state in ("running", "waiting") and not is_known

    def _begin(self, trial: Trial, gpus: str) -> bool:
        """Begin or resume a trial; return False if another process trains it."""
        log = trial.lock()
        if log is None:
            return False
        with ExitStack() as unless_it_trains:
            unless_it_trains.enter_context(log)
            trial = trial.reread()  # nobody else can change it any more
            if not self._is_remaining(trial) or trial.is_trained_by_hand:
                return False
            self.sweep.require_same_config()
            trial = trial.begin()
            run = trial.run()
            if run is not None:  # a training that fails at once must not seem to have been stopped
                (run / REQUEUE).unlink(missing_ok=True)
            if trial.is_finished:
                self._complete(trial)
                return True
            self.jobs[trial.number] = Job(trial, gpus, log, self._start_training(trial, gpus, log))
            unless_it_trains.pop_all()
        where = f"GPU {gpus}" if gpus else "the CPU"
        print_clean(f"{trial.name}: {'begins' if run is None else 'resumes'} on {where}")
        return True

    def _start_training(self, trial: Trial, gpus: str, log: IO[bytes]) -> subprocess.Popen:
        flags, variables = torchrun.signal_settings()
        torchrun_words = ["-m", "torch.distributed.run", f"--nproc_per_node={self.ranks}", *flags]
        launcher = [*torchrun_words, *rendezvous.on_this_machine()] if self.ranks > 1 else []
        threads = max(1, machine.usable_cores() // (len(self.gpus) * self.ranks))
        inherited = launch_env.without_rank(env.variables())
        # Several ranks have several GPUs: each chooses the one on which it renders.
        defaults = {"OMP_NUM_THREADS": str(threads), **env.rendering_variables(gpus)}
        variables = {**defaults, **inherited, **variables, "CUDA_VISIBLE_DEVICES": gpus}
        words = [sys.executable, *launcher, *self.program, *trial.words()]
        tie = end_with_parent.ending_with(os.getpid(), signal.SIGTERM)
        return training_process.start(words, log, variables, tie)

    def _check(self, job: Job) -> None:
        code, trial = job.process.poll(), job.trial
        if code is None:
            self._require_metric(trial)
            return
        try:
            run = trial.run()
            if trial.is_finished:  # even if its processes crashed as they ended
                self._complete(trial)
            elif self.signal or code == EXIT_STOPPED or (run and (run / REQUEUE).exists()):
                self.stopped.add(trial.number)
                print_clean(f"{trial.name}: stopped; the next sweep run resumes it")
            elif code < 0 and self.kills[trial.number] < _MOST_KILLS:
                self.kills[trial.number] += 1  # it is resumed when its last rank releases the lock
                self.waits_until = time.monotonic() + _ENDING_SECONDS
                print_clean(f"{trial.name}: killed by {signal.Signals(-code).name}")
            else:
                self._fail(trial, _last_error(trial, code))
        finally:
            del self.jobs[trial.number]
            job.log.close()

    def _require_metric(self, trial: Trial) -> None:
        """Stop all trials if their logs turn out to lack what the sweep compares by."""
        if self.has_metric or self.error is not None:
            return
        try:
            self.has_metric = trial.require_metric()
        except DataError as error:
            self.error = error
            self._stop_trials(f"no {self.sweep.metric}")

    def _complete(self, trial: Trial) -> None:
        try:
            value = trial.complete()
        except DataError as error:
            self._fail(trial, str(error))
        else:
            print_clean(f"{trial.name}: complete, {self.sweep.metric} {value:.4g}")

    def _fail(self, trial: Trial, error: str) -> None:
        trial.fail(error)
        print_clean(f"{trial.name}: FAILED: {error} ({trial.log})")


def _last_error(trial: Trial, code: int) -> str:
    """Return the error that ended a training."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    try:
        return known_errors.error_line(files.read_end(trial.log))
    except OSError:  # somebody has removed it
        return f"exit code {code}"
