"""`robomimic-ddp sweep run`: trains the trials of a sweep, one in each slot.

Any number of workers share a sweep. Two locks a trial keep them apart: the worker's says who looks
after it, the training's, which the training process inherits, that it trains. A killed worker's
trial is free, but is not started again before its training has ended.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.launch import torchrun
from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE
from robomimic_ddp.commands.sweep import report
from robomimic_ddp.commands.sweep.study import REQUEUE, Entry, Sweep
from robomimic_ddp.config import env, machine
from robomimic_ddp.distributed import rendezvous
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED, DataError

_POLL_SECONDS, _GLANCE_SECONDS = 1.0, 0.01
_MOST_KILLS = 3
"""How often a training that a signal has ended (a machine out of memory, for one) is resumed."""
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_PRUNED = "pruned after epoch"
_ERROR = re.compile(r"\b\w*(error|exception)\b.*:", re.IGNORECASE)


@dataclass(frozen=True)
class Slot:
    """A place for one trial. visible: its CUDA_VISIBLE_DEVICES; "" where there is no GPU. cores:
    those that its training may run on; () for all of this process.
    """

    number: int
    visible: str
    cores: tuple[int, ...] = ()


@dataclass
class Job:
    """A trial that this worker looks after. process: None while another's training ends."""

    entry: Entry
    slot: Slot
    lock: int
    trial: Any = None
    process: subprocess.Popen | None = None
    kills: int = 0
    pruned: bool = False
    begun: float = field(default_factory=time.monotonic)


def make_slots(gpus: Sequence[str], ranks: int, asked: int | None) -> list[Slot]:
    """Slots of `ranks` of the `gpus` each; more slots than that share them by turns. Slots on the
    CPU share its cores out: hosts take two threads each, whatever others use.
    """
    groups = [",".join(gpus[at : at + ranks]) for at in range(0, len(gpus) - ranks + 1, ranks)]
    groups = groups or [""]
    slots = [Slot(number, groups[number % len(groups)]) for number in range(asked or len(groups))]
    cores = () if gpus or not hasattr(os, "sched_setaffinity") else machine.own_cores()
    share = len(cores) // len(slots)
    own = ((*cores[one.number * share :][:share],) for one in slots)
    return [replace(one, cores=few) for one, few in zip(slots, own)]


class Worker:
    """Trains what is left of `sweep`. program: what trains, in place of the host's entry."""

    def __init__(
        self,
        sweep: Sweep,
        slots: Sequence[Slot],
        ranks: int = 1,
        program: Sequence[str] | None = None,
        poll: float = _POLL_SECONDS,
    ) -> None:
        self.sweep, self.slots, self.ranks, self.poll = sweep, slots, ranks, poll
        self.jobs: dict[int, Job] = {}
        self.left: set[int] = set()
        """Trials that were stopped from outside: not begun again by this worker."""
        self.heard: str | None = None
        self._told = False
        flags, self._variables = torchrun.passes_on_signals()
        several = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", *flags]
        self._launcher = several if ranks > 1 else []
        self._program = program or ("-m", DOT_LIST_MODULE)

    def run(self, retry_failed: bool = False) -> int:
        """Returns the exit code: 1 where a trial has failed, 75 after a stop on request."""
        if retry_failed:
            lock = self._take("retry")
            if lock is not None:
                self.sweep.retry_failed()
                os.close(lock)
        with self._listening(), report.live(self) as show:
            while True:
                claimed = self.heard is None and self._fill(show)
                if not self.jobs and not claimed:
                    break
                if self.heard is not None and not self._told:
                    show(f"{self.heard}: {len(self.jobs)} trial(s) save and stop")
                    self._told = True
                    for job in self.jobs.values():
                        self._stop(job)
                for job in list(self.jobs.values()):
                    self._look(job, show)
                show()
                time.sleep(self.poll if self.heard is None else min(self.poll, 0.2))
            for line in report.end(self.sweep):
                show(line)
        if self.heard is not None or self.left:
            return EXIT_STOPPED
        failed = any(entry.state == "fail" for entry in self.sweep.entries())
        return EXIT_REFUSED if failed else EXIT_DONE

    @contextmanager
    def _listening(self) -> Iterator[None]:
        def hear(number: int, frame: Any) -> None:
            if self.heard is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.heard = self.heard or signal.Signals(number).name

        ours = [number for number in _STOPS if signal.getsignal(number) != signal.SIG_IGN]  # nohup
        before = {number: signal.signal(number, hear) for number in ours}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, name: str) -> int | None:
        """The lock `name` as an open file, which has it until it is closed; None: another's."""
        path = self.sweep.directory / "locks" / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # by a worker, or for an instant by `sweep show`
                time.sleep(_GLANCE_SECONDS)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise DataError(
                f"{path} cannot be locked: {error}. Workers of a sweep keep apart by locks; put "
                "its folder on a file system that has them."
            ) from error
        return descriptor

    def _fill(self, show: report.Show) -> bool:
        """Gives free slots the next trials, first those left by another worker; whether any."""
        used, claimed = {job.slot for job in self.jobs.values()}, False
        for slot in self.slots:
            if slot in used:
                continue
            entries = [one for one in self.sweep.entries() if one.state in ("running", "waiting")]
            for entry in sorted(entries, key=lambda one: (one.state != "running", one.index)):
                if self._claim(entry, slot, show):
                    claimed = True
                    break
        return claimed

    def _claim(self, entry: Entry, slot: Slot, show: report.Show) -> bool:
        if entry.index in self.jobs or entry.index in self.left:
            return False
        lock = self._take(f"{entry.index:03d}.worker")
        if lock is None:
            return False
        entry = self.sweep.entries()[entry.index]  # as it is now that nobody else changes it
        taken = entry.state in ("running", "waiting") and not self._trains_elsewhere(entry, slot)
        if not taken:
            os.close(lock)
            return False
        job = self.jobs[entry.index] = Job(entry, slot, lock)
        if not self._start(job, show):
            show(f"{entry.name}: its training outlived its worker; waiting for its end")
        return True

    def _trains_elsewhere(self, entry: Entry, slot: Slot) -> bool:
        """Whether its training outlived its worker, on GPUs of another slot of this worker."""
        lock = self._take(f"{entry.index:03d}.training")
        if lock is not None:
            os.close(lock)
            return False
        path = self.sweep.directory / "locks" / f"{entry.index:03d}.training"
        others = {_place(other) for other in self.slots} - {_place(slot)}
        return path.read_text(encoding="utf-8") in others

    def _start(self, job: Job, show: report.Show) -> bool:
        """Begins or resumes the training, unless one runs already: then False."""
        descriptor = self._take(f"{job.entry.index:03d}.training")
        if descriptor is None:
            return False
        try:
            job.trial = self.sweep.begin(job.entry)
            job.entry = entry = self.sweep.entries()[job.entry.index]
            run = entry.run()
            if run is not None:  # else a training that fails at once would seem to have stopped
                (run / REQUEUE).unlink(missing_ok=True)
            if entry.is_finished or _PRUNED in job.trial.user_attrs:
                self._end(job, show)
                return True
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _place(job.slot).encode(), 0)
            meeting = rendezvous.on_this_machine() if self._launcher else []
            command = [*self._launcher, *meeting, *self._program, *self.sweep.words(entry)]
            with open(entry.log, "ab") as log:
                job.process = subprocess.Popen(
                    [sys.executable, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment(job.slot),
                    pass_fds=(descriptor,),
                    start_new_session=True,  # Ctrl-C is the worker's, which then asks for a save
                )
            if job.slot.cores:  # before it has threads, which inherit them
                with suppress(OSError):  # it has ended
                    os.sched_setaffinity(job.process.pid, job.slot.cores)
        finally:
            os.close(descriptor)
        where = f"GPU {job.slot.visible}" if job.slot.visible else f"slot {job.slot.number}"
        show(f"{entry.name}: {'begins' if run is None else 'resumes'} on {where}")
        return True

    def _environment(self, slot: Slot) -> dict[str, str]:
        cores = max(1, machine.usable_cores() // (len(self.slots) * self.ranks))
        added = {**self._variables, "CUDA_VISIBLE_DEVICES": slot.visible}
        return {"OMP_NUM_THREADS": str(cores), **env.variables(), **added}

    def _look(self, job: Job, show: report.Show) -> None:
        if job.process is None:  # another's training
            if self.heard is not None:
                self._forget(job)
            else:
                self._start(job, show)
            return
        code = job.process.poll()
        if code is None:
            self._report(job, show)
            return
        entry = job.entry
        if job.pruned or (code == 0 and entry.is_finished):
            self._end(job, show)
        elif self.heard is not None or code == EXIT_STOPPED or entry.has_stopped:
            self.left.add(entry.index)
            show(f"{entry.name}: stopped; the next sweep run resumes it")
            self._forget(job)
        elif code < 0 and job.kills < _MOST_KILLS:
            job.kills, job.process = job.kills + 1, None
            show(f"{entry.name}: ended by {signal.Signals(-code).name}")
        else:
            self._fail(job, _last_error(entry.log, code), show)

    def _report(self, job: Job, show: report.Show) -> None:
        """With --prune: what is new in the history goes to Optuna, which may end the trial."""
        if not self.sweep.definition["prune"] or job.pruned:
            return
        known, curve = self.sweep.storage.get_trial(job.entry.id).intermediate_values, {}
        with suppress(DataError):
            curve = job.entry.curve(self.sweep.metric)
        new = {epoch: value for epoch, value in curve.items() if epoch not in known}
        for epoch, value in sorted(new.items()):
            job.trial.report(value, epoch)
            if epoch < self.sweep.definition["epochs"] and job.trial.should_prune():
                job.pruned = True
                job.trial.set_user_attr(_PRUNED, epoch)  # Optuna would not decide it again
                show(f"{job.entry.name}: pruned after epoch {epoch}")
                self._stop(job)
                return

    def _stop(self, job: Job) -> None:
        if job.process is not None and job.process.poll() is None:
            with suppress(ProcessLookupError):
                job.process.send_signal(signal.SIGTERM)

    def _end(self, job: Job, show: report.Show) -> None:
        """The training is finished, its best epoch the trial's value; or it was pruned."""
        metric = self.sweep.metric
        if not job.entry.is_finished:
            job.trial.study.tell(job.trial, state=_state("PRUNED"))
            self._forget(job)
            return
        try:
            values = job.entry.curve(metric)
        except DataError as error:
            self._fail(job, str(error), show)
            return
        if not values:
            self._fail(job, f"its history has no {metric}; compare by another metric", show)
            return
        value = self.sweep.best(list(values.values()))
        job.trial.study.tell(job.trial, value)
        minutes = (time.monotonic() - job.begun) / 60
        show(f"{job.entry.name}: complete, {metric} {value:.4g} ({minutes:.1f} min)")
        self._forget(job)

    def _fail(self, job: Job, error: str, show: report.Show) -> None:
        job.trial.set_user_attr("error", error)
        job.trial.study.tell(job.trial, state=_state("FAIL"))
        show(f"{job.entry.name}: FAILED: {error} ({job.entry.log})")
        self._forget(job)

    def _forget(self, job: Job) -> None:
        del self.jobs[job.entry.index]
        os.close(job.lock)


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _place(slot: Slot) -> str:
    return f"{env.host_name()} {slot.number} {slot.visible}"


def _last_error(log: Path, code: int) -> str:
    """What a user should read first of a training that has failed."""
    lines: list[str] = []
    with suppress(OSError):  # somebody has removed it
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-200:]
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return (errors or lines or [ended])[-1][:400] if code >= 0 else ended
