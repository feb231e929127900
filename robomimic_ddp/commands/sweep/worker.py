"""`robomimic-ddp sweep run`: trains the trials of a sweep, each on separate GPUs.

Any number of workers share a sweep; the lock of a trial (see entry.py) keeps them apart. A trial
whose worker was killed is taken by the next worker as soon as its training has ended, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.launch import torchrun
from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE
from robomimic_ddp.commands.sweep import show
from robomimic_ddp.commands.sweep.entry import REQUEUE, Entry
from robomimic_ddp.commands.sweep.study import Sweep
from robomimic_ddp.config import env, machine
from robomimic_ddp.distributed import known_errors, rendezvous
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED, DataError
from robomimic_ddp.terminal import print_clean

_POLL_SECONDS = 1.0
_MOST_KILLS = 3
"""How often a training that a signal has ended (a machine out of memory, for one) is resumed."""
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class Job:
    """A trial that this worker trains. gpus: its CUDA_VISIBLE_DEVICES; lock: its locked log."""

    entry: Entry
    gpus: str
    lock: int
    trial: Any
    process: subprocess.Popen


class Worker:
    """Trains what is left of `sweep`, one trial at a time on each of `gpus`, which are values of
    CUDA_VISIBLE_DEVICES. program: what trains, in place of the host's entry.
    """

    def __init__(
        self,
        sweep: Sweep,
        gpus: Sequence[str],
        ranks: int = 1,
        program: Sequence[str] | None = None,
        poll: float = _POLL_SECONDS,
    ) -> None:
        self.sweep, self.gpus, self.ranks, self.poll = sweep, gpus, ranks, poll
        self.jobs: dict[int, Job] = {}
        self.stopped: set[int] = set()
        """Trials that were stopped from outside: this worker does not begin them again."""
        self.awaited: set[int] = set()
        self.kills: Counter[int] = Counter()
        self.signal: str | None = None
        flags, self._variables = torchrun.passes_on_signals()
        several = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", *flags]
        self._launcher = several if ranks > 1 else []
        self._program = program or ("-m", DOT_LIST_MODULE)

    def run(self) -> int:
        """Train until no trial is left, and return the exit code: 1 where a trial has failed, 75
        after a stop on request.
        """
        with self._catching_signals():
            was_told = False
            while self._begin_trials() or self.jobs:
                if self.signal is not None and not was_told:
                    _print(f"{self.signal}: {len(self.jobs)} trial(s) save and stop")
                    for job in self.jobs.values():
                        job.process.send_signal(signal.SIGTERM)
                    was_told = True
                for job in list(self.jobs.values()):
                    self._look_after(job)
                time.sleep(self.poll if self.signal is None else min(self.poll, 0.2))
        entries = self.sweep.entries()
        for line in show.ending(entries):
            _print(line)
        if self.signal is not None or self.stopped:
            return EXIT_STOPPED
        return EXIT_REFUSED if any(entry.state == "fail" for entry in entries) else EXIT_DONE

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        def on_signal(number: int, frame: Any) -> None:
            if self.signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = self.signal or signal.Signals(number).name

        ours = [number for number in _STOPS if signal.getsignal(number) != signal.SIG_IGN]  # nohup
        before = {number: signal.signal(number, on_signal) for number in ours}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _begin_trials(self) -> bool:
        """Begin trials on free GPUs, first those that another worker left. Return whether any has
        begun, or will be free to begin when its orphaned training has ended.
        """
        if self.signal is not None:
            return False
        orphans = [entry for entry in self.sweep.entries() if self._is_orphan(entry)]
        has_begun = bool(orphans)
        for entry in orphans:
            if entry.number not in self.awaited:
                _print(f"{entry.name}: its training outlived who started it; waiting for its end")
        self.awaited = {entry.number for entry in orphans}
        busy = [job.gpus for job in self.jobs.values()]
        busy += [entry.worker["gpus"] for entry in orphans]
        for gpus in self.gpus:
            if any(set(gpus.split(",")) & set(others.split(",")) for others in busy):
                continue
            unfinished = [e for e in self.sweep.entries() if e.state in ("running", "waiting")]
            unfinished.sort(key=lambda entry: (entry.state != "running", entry.number))
            has_begun |= any(self._begin(entry, gpus) for entry in unfinished)
        return has_begun

    def _is_orphan(self, entry: Entry) -> bool:
        """Whether its training has outlived its worker or launcher on this machine."""
        is_ours = entry.number in self.jobs or entry.number in self.stopped
        if is_ours or entry.state != "running" or entry.worker.get("host") != env.host_name():
            return False
        process = entry.worker["process"]
        return (process == os.getpid() or not _is_alive(process)) and entry.is_held

    def _begin(self, entry: Entry, gpus: str) -> bool:
        """Begin or resume a trial, unless somebody else trains it; return whether this was done."""
        if entry.number in self.jobs or entry.number in self.stopped:
            return False
        lock = entry.lock()
        if lock is None:
            return False
        try:
            entry = self.sweep.entry(entry.number)  # as it is now that nobody else changes it
            if entry.state not in ("running", "waiting") or entry.is_trained_by_hand:
                return False
            worker = {"host": env.host_name(), "process": os.getpid(), "gpus": gpus}
            trial = self.sweep.begin(entry, worker)
            entry = self.sweep.entry(entry.number)
            run = entry.run()
            if run is not None:  # else a training that fails at once would seem to have stopped
                (run / REQUEUE).unlink(missing_ok=True)
            if entry.is_finished:
                self._complete(entry, trial)
                return True
            process = self._start_training(entry, gpus, lock)
            self.jobs[entry.number] = Job(entry, gpus, lock, trial, process)
        finally:
            if entry.number not in self.jobs:
                os.close(lock)
        where = f"GPU {gpus}" if gpus else "the CPU"
        _print(f"{entry.name}: {'begins' if run is None else 'resumes'} on {where}")
        return True

    def _start_training(self, entry: Entry, gpus: str, log: int) -> subprocess.Popen:
        meeting = rendezvous.on_this_machine() if self._launcher else []
        command = [*self._launcher, *meeting, *self._program, *self.sweep.dot_list(entry)]
        threads = max(1, machine.usable_cores() // (len(self.gpus) * self.ranks))
        added = {**self._variables, "CUDA_VISIBLE_DEVICES": gpus}
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"OMP_NUM_THREADS": str(threads), **env.variables(), **added},
            start_new_session=True,  # Ctrl-C is the worker's, which then asks for a save
        )

    def _look_after(self, job: Job) -> None:
        code, entry = job.process.poll(), job.entry
        if code is None:
            return
        try:
            run = entry.run()
            if code == 0 and entry.is_finished:
                self._complete(entry, job.trial)
            elif self.signal or code == EXIT_STOPPED or (run and (run / REQUEUE).exists()):
                self.stopped.add(entry.number)
                _print(f"{entry.name}: stopped; the next sweep run resumes it")
            elif code < 0 and self.kills[entry.number] < _MOST_KILLS:
                self.kills[entry.number] += 1  # resumed when its last rank has left the lock
                _print(f"{entry.name}: ended by {signal.Signals(-code).name}")
            else:
                self._fail(entry, job.trial, _last_error(entry.log, code))
        finally:
            del self.jobs[entry.number]
            os.close(job.lock)

    def _complete(self, entry: Entry, trial: Any) -> None:
        """Tell Optuna the value of a finished training: the metric at its best epoch."""
        metric = self.sweep.metric
        try:
            values = list(entry.curve(metric).values())
        except DataError as error:
            self._fail(entry, trial, str(error))
            return
        if not values:
            message = f"its history has no finite {metric}: it diverged, or never computed it"
            self._fail(entry, trial, message)
            return
        value = self.sweep.best(values)
        self.sweep.study.tell(trial, value)
        _print(f"{entry.name}: complete, {metric} {value:.4g}")

    def _fail(self, entry: Entry, trial: Any, error: str) -> None:
        from optuna.trial import TrialState

        trial.set_user_attr("error", error)
        self.sweep.study.tell(trial, state=TrialState.FAIL)
        _print(f"{entry.name}: FAILED: {error} ({entry.log})")


def _print(line: str) -> None:
    print_clean(line)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # another user's
    return True


def _last_error(log: Path, code: int) -> str:
    """Return what a user should read first of a training that has failed."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    try:
        return known_errors.error_line(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:  # somebody has removed it
        return f"exit code {code}"
