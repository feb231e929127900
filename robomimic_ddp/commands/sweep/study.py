"""The folder of a sweep. Optuna's journal has its trials, for any number of workers.

DIR/sweep.journal    the study: definition, trials, their states and values
DIR/config.json      the config of all trials
DIR/trials/NAME/     the trial's run, in a folder with a time stamp
DIR/logs/NUMBER.txt  the output of its training, which is also its lock

A worker locks a trial's log (`flock`) before it touches the trial, and the training inherits the
open file as its output, on every rank. So the lock is free exactly when neither the worker nor any
process of the training is alive, however they ended.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from robomimic_ddp import files
from robomimic_ddp.commands.sweep import METRICS, journal, kind, space
from robomimic_ddp.errors import DataError
from robomimic_ddp.monitoring.records import history, run_summary
from robomimic_ddp.monitoring.records.run_files import LOCK, RECORD
from robomimic_ddp.terminal import listed

_MOST_BYTES = 256 * 2**20
JOURNAL, CONFIG, NAME = "sweep.journal", "config.json", "sweep"
_RETRY_SECONDS = 0.01


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """For the block, raise the errors that an edited journal causes as a DataError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise DataError(
            f"{file} cannot be read as the journal of a sweep ({type(error).__name__}: {error}): "
            "it is damaged, or belongs to another program. Make a new sweep in another folder."
        ) from error


class Sweep:
    """An opened sweep. study: Optuna's study; space: key -> Optuna's distribution; best: max or
    min, by the metric; config_digest: of the config that the sweep was made with.
    """

    def __init__(self, directory: Path) -> None:
        optuna = journal.load_optuna()
        self.directory, file = directory, directory / JOURNAL
        if not os.path.lexists(file):
            raise DataError(
                f"{directory} has no {JOURNAL}; expected the folder of a sweep. Make one with "
                "robomimic-ddp sweep new."
            )
        try:
            files.require_no_link(file)
            files.regular(file, _MOST_BYTES)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error}.") from error
        with _reading(file):
            self.storage = journal.storage(file)
            self.study = optuna.load_study(study_name=NAME, storage=self.storage)
            definition = self.study.user_attrs["definition"]
            from_json = optuna.distributions.json_to_distribution
            self.space = {key: from_json(text) for key, text in definition["space"].items()}
            self.metric, sampler = definition["metric"], definition["sampler"]
            self.config_digest = definition["config_digest"]
            if kind(self.metric) not in METRICS:
                raise ValueError(f"it compares by {self.metric!r:.50}")
        samplers = optuna.samplers
        self.study.sampler = (
            samplers.TPESampler(constant_liar=True)
            if sampler == "tpe"
            else samplers.RandomSampler()
        )
        self.maximizes = self.study.direction == optuna.study.StudyDirection.MAXIMIZE
        self.best = max if self.maximizes else min

    def require_same_config(self) -> None:
        """Raise DataError if the config was edited after the sweep was made."""
        config = self.directory / CONFIG
        if digest(files.read_bytes(config)) != self.config_digest:
            raise DataError(
                f"{config} was edited after the sweep was made, and trials of different configs "
                "cannot be compared. Restore it, or make a new sweep of the edited config."
            )

    def trials(self) -> list[Trial]:
        """Return the trials, in the order of their numbers."""
        with _reading(self.directory / JOURNAL):
            return [Trial(self, record) for record in self.study.get_trials(deepcopy=False)]


class Trial:
    """A trial, as the journal described it when it was read.

    state: Optuna's state in lower case; values: those of the sweep's keys; value: of its metric.
    """

    def __init__(self, sweep: Sweep, record: Any) -> None:
        self._sweep, self._id, self.number = sweep, record._trial_id, record.number
        self.state, self.value = record.state.name.lower(), record.value
        drawn = {**record.system_attrs.get("fixed_params", {}), **record.params}
        self.values = {key: space.decoded(drawn[key]) for key in sweep.space if key in drawn}
        varied = {key: of for key, of in self.values.items() if not sweep.space[key].single()}
        self.name = space.trial_name(self.number, varied)
        self.folder = sweep.directory / "trials" / self.name
        self.log = sweep.directory / "logs" / f"{self.number:03d}.txt"
        self.error = record.user_attrs.get("error", "")

    def reread(self) -> Trial:
        """Return the trial as the journal describes it now."""
        return self._sweep.trials()[self.number]

    def begin(self) -> Trial:
        """Draw the values of a waiting trial, mark it as RUNNING, and return it. The caller has its
        lock.
        """
        from optuna import trial

        if self.state == "waiting":
            self._sweep.storage.set_trial_state_values(self._id, trial.TrialState.RUNNING)
        with _reading(self._sweep.directory / JOURNAL):
            drawn = trial.Trial(self._sweep.study, self._id)
            for key, distribution in self._sweep.space.items():
                drawn._suggest(key, distribution)
        return self.reread()

    def complete(self) -> float:
        """Tell Optuna the value of a finished training, which is the metric at its best epoch, and
        return it. Raises DataError for a history without one.
        """
        self.require_metric()
        curve, metric = self.curve(), self._sweep.metric
        if not curve:
            raise DataError(
                f"its history has no finite {metric}: it diverged, or never computed it"
            )
        value = self._sweep.best(curve.values())
        self._sweep.study.tell(self.number, value)
        return value

    def fail(self, error: str) -> None:
        """Tell Optuna that its training has failed."""
        from optuna.trial import TrialState

        self._sweep.storage.set_trial_user_attr(self._id, "error", error)
        self._sweep.study.tell(self.number, state=TrialState.FAIL)

    def words(self) -> list[str]:
        """Return the arguments of its training."""
        settings = {
            **self.values,
            "train.output_dir": str(self.folder.parent),
            "experiment.name": self.name,
            "ddp.resume": "auto",
        }
        return [f"load_from={self._sweep.directory / CONFIG}", *space.dot_list(settings)]

    def run(self) -> Path | None:
        """Return the folder of the trial's newest run, if there is one."""
        folders = self.folder.iterdir() if self.folder.is_dir() else ()
        runs = [folder for folder in folders if folder.is_dir()]
        return max(runs, key=lambda run: ((run / RECORD).exists(), run), default=None)

    def curve(self) -> dict[int, float]:
        """Return epoch -> the metric, the mean over environments; NaN and infinity are left out.
        Raises DataError for a damaged history.
        """
        key = self._sweep.metric.partition("/")[2]
        values: dict[int, list[float]] = defaultdict(list)
        for epoch, log in self._logs():
            if isinstance(log.get(key), (int, float)):
                values[epoch].append(log[key])
        means = {epoch: statistics.fmean(of_epoch) for epoch, of_epoch in values.items()}
        return {epoch: mean for epoch, mean in means.items() if math.isfinite(mean)}

    def require_metric(self) -> bool:
        """Return whether its history has a log of the metric's phase. Raises DataError if that does
        not contain the metric, or for a damaged history.
        """
        metric, logs = self._sweep.metric, self._logs()
        phase, _, key = metric.partition("/")
        if logs and not any(key in log for _, log in logs):
            names = [f"{phase}/{name}" for name in logs[0][1]]
            losses = listed(name for name in names if kind(name) in METRICS) or "none"
            raise DataError(
                f"{self.name}: its training logs no {metric}, and its sweep compares by that. "
                f"Metrics that it logs instead: {losses}. Make a new sweep in another folder with "
                "--metric NAME, or with rollouts."
            )
        return bool(logs)

    def _logs(self) -> list[tuple[int, dict]]:
        """Return the epoch and the log of each record of the metric's phase."""
        run = self.run()
        if run is None or not (run / history.FILE_NAME).is_file():
            return []
        phase, _, _ = self._sweep.metric.partition("/")
        return [(r["epoch"], r["log"]) for r in history.read(run) if r["phase"] == phase]

    @property
    def is_finished(self) -> bool:
        """Whether its run has reached its last epoch."""
        run = self.run()
        return run is not None and "outcome" in run_summary.read(run)

    @property
    def is_locked(self) -> bool:
        """Whether a worker is in charge of it, or its training runs."""
        return files.is_locked(self.log)

    @property
    def is_trained_by_hand(self) -> bool:
        """Whether somebody has resumed its run without a worker, and that training runs."""
        run = self.run()
        return run is not None and files.is_locked(run / LOCK)

    def lock(self) -> IO[bytes] | None:
        """Return the locked log, whose lock lasts until all copies of the open file are closed;
        None if another worker, or a training that is ending after its worker, has the lock.
        """
        log = files.opened_to_write(self.log)
        try:
            if _try_lock(log):
                return log
        except BaseException:
            log.close()
            raise
        log.close()
        return None


def digest(config: bytes) -> str:
    """Return what identifies the content of a config file."""
    return hashlib.sha256(config).hexdigest()


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if files.try_lock(file):
            return True
        time.sleep(_RETRY_SECONDS)  # `sweep show` has the lock for an instant
        return files.try_lock(file)
    except OSError as error:
        raise DataError(
            f"the log of a trial cannot be locked: {error}. Locks keep the workers of a sweep "
            "apart: put its folder on a file system that supports them."
        ) from error
