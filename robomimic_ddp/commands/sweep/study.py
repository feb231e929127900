"""The folder of a sweep, with its trials in Optuna's journal, for any number of workers.

DIR/sweep.journal    the study: definition, trials, their states and values
DIR/config.json      the config of all trials
DIR/trials/NAME/     the runs of a trial (one, in a folder with a time stamp)
DIR/logs/NUMBER.txt  what its training printed, and its lock (see entry.py)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.sweep import journal, space
from robomimic_ddp.commands.sweep.entry import Entry
from robomimic_ddp.config import json_config, paths
from robomimic_ddp.errors import DataError

JOURNAL, CONFIG, NAME = "sweep.journal", "config.json", "sweep"


class Sweep:
    """An opened sweep. definition: {"space", "sampler", "metric"}; study: Optuna's."""

    def __init__(self, directory: Path) -> None:
        optuna = journal.load_optuna()
        self.directory = paths.expanded(directory).absolute()
        file = self.directory / JOURNAL
        if not file.is_file():
            raise DataError(
                f"{directory} has no {JOURNAL}; expected the folder of a sweep. Make one with "
                "robomimic-ddp sweep new."
            )
        try:
            self.storage = journal.storage(file)
            self.study = optuna.load_study(study_name=NAME, storage=self.storage)
            self.definition = self.study.user_attrs["definition"]
            self.metric, self.space = self.definition["metric"], self.definition["space"]
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise DataError(
                f"{file} cannot be read as the journal of a sweep ({error}): it is damaged, or "
                "another program's. Make a new sweep in another folder."
            ) from error
        samplers = optuna.samplers
        searches = self.definition["sampler"] == "tpe"
        self.study.sampler = (
            samplers.TPESampler(constant_liar=True) if searches else samplers.RandomSampler()
        )
        self.maximizes = self.study.direction == optuna.study.StudyDirection.MAXIMIZE

    def entries(self) -> list[Entry]:
        """Return the trials by their number; of one that was tried again the newest."""
        entries = {}
        for trial in self.study.get_trials(deepcopy=False):
            attributes = trial.user_attrs
            number = attributes.get("number")  # a trial that somebody has added by hand has none
            if isinstance(number, int):
                values = attributes.get("values", {})
                varied = {key: value for key, value in values.items() if self._varies(key)}
                entries[number] = Entry(
                    self.directory,
                    trial._trial_id,
                    number,
                    trial.state.name.lower(),
                    values,
                    space.trial_name(number, varied),
                    trial.value,
                    attributes.get("error", ""),
                    attributes.get("digests", ()),
                    attributes.get("worker", {}),
                )
        return [entries[number] for number in sorted(entries)]

    def entry(self, number: int) -> Entry:
        return next(entry for entry in self.entries() if entry.number == number)

    def _varies(self, key: str) -> bool:
        values = self.space.get(key)
        return not isinstance(values, list) or len(values) > 1

    def best(self, values: Sequence[float]) -> float:
        return max(values) if self.maximizes else min(values)

    def begin(self, entry: Entry, worker: Mapping[str, Any]) -> Any:
        """Return Optuna's trial of an unfinished entry, in the state RUNNING and with its values.
        The caller has its lock.
        """
        from optuna.trial import Trial, TrialState

        if entry.state == "waiting":
            self.storage.set_trial_state_values(entry.id, TrialState.RUNNING)
        trial = Trial(self.study, entry.id)
        values = {key: _suggest(trial, key, choices) for key, choices in self.space.items()}
        if "values" not in trial.user_attrs:
            trial.set_user_attr("values", values)
        digest = hashlib.sha256((self.directory / CONFIG).read_bytes()).hexdigest()[:8]
        if digest not in entry.digests:
            trial.set_user_attr("digests", [*entry.digests, digest])
        trial.set_user_attr("worker", dict(worker))
        return trial

    def dot_list(self, entry: Entry) -> list[str]:
        """Return the words of a trial's training."""
        of_sweep = {
            "train.output_dir": str(self.directory / "trials"),
            "experiment.name": entry.name,
            "ddp.resume": "auto",
        }
        settings = {**entry.values, **of_sweep}
        return [f"load_from={self.directory / CONFIG}", *space.dot_list(settings)]

    def require_data(self) -> None:
        """Raise DataError where a dataset of an unfinished trial is missing."""
        file = self.directory / CONFIG
        train = json_config.read_json(str(file), "").get("train") or {}
        for entry in (entry for entry in self.entries() if entry.state != "complete"):
            swept = {key.removeprefix("train."): value for key, value in entry.values.items()}
            for path in paths.datasets({**train, **swept}):
                if not Path(path).exists():
                    raise DataError(
                        f"{path}, the dataset of trial {entry.name}, is not there: every trial "
                        "with it would fail. Expected a file, or an RLDS dataset's folder, on each "
                        f"machine that trains. Correct the path in {file}, or make another sweep."
                    )

    def retry_failed(self) -> None:
        """Queue failed trials again, with their values and folder."""
        for entry in self.entries():
            descriptor = entry.lock() if entry.state == "fail" else None
            if descriptor is None:
                continue
            try:
                if self.entry(entry.number).state == "fail":  # no other worker queued it meanwhile
                    trial = self.storage.get_trial(entry.id)
                    attributes = {"number": entry.number, "values": entry.values}
                    self.study.enqueue_trial(trial.params, user_attrs=attributes)
            finally:
                os.close(descriptor)


@contextmanager
def writable(directory: Path) -> Iterator[None]:
    """Turn an OSError, such as of a full disk, into a DataError that names the sweep."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{directory}: the sweep cannot be written ({error}). Trainings that run are not "
            "affected. Free disk space, or correct the permissions, and run the command again: it "
            "continues where this one ended."
        ) from error


def _suggest(trial: Any, key: str, choices: Any) -> Any:
    """Return the trial's value. Listed ones are JSON text for Optuna, which has no lists."""
    if isinstance(choices, list):
        texts = [json.dumps(value) for value in choices]
        return json.loads(trial.suggest_categorical(key, texts))
    if choices["kind"] == "int":
        return trial.suggest_int(key, choices["low"], choices["high"])
    is_log = choices["kind"] == "log"
    return trial.suggest_float(key, choices["low"], choices["high"], log=is_log)
