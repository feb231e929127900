"""The folder of a sweep, with its trials in Optuna's journal, for any number of workers.

DIR/sweep.journal    the study: definition, trials, their states and values
DIR/config.json      the config of all trials
DIR/trials/NAME/     the runs of a trial (one, in a folder with a time stamp)
DIR/logs/NUMBER.txt  what its training printed, and its lock (see entry.py)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands.sweep import journal, space
from robomimic_ddp.commands.sweep.entry import Entry
from robomimic_ddp.errors import DataError

_MOST_BYTES = 256 * 2**20
JOURNAL, CONFIG, NAME = "sweep.journal", "config.json", "sweep"


class Sweep:
    """An opened sweep. study: Optuna's; space: key -> Optuna's distribution."""

    def __init__(self, directory: Path) -> None:
        optuna = journal.load_optuna()
        self.directory, file = directory, directory / JOURNAL
        if not file.is_file():
            raise DataError(
                f"{directory} has no {JOURNAL}; expected the folder of a sweep. Make one with "
                "robomimic-ddp sweep new."
            )
        if file.is_symlink():
            raise DataError(
                f"{file} is a link: this sweep would write to the file that it leads to. Copy that "
                "file here in its place."
            )
        try:
            files.regular(file, _MOST_BYTES)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error}.") from error
        try:
            self.storage = journal.storage(file)
            self.study = optuna.load_study(study_name=NAME, storage=self.storage)
            definition = self.study.user_attrs["definition"]
            from_json = optuna.distributions.json_to_distribution
            self.space = {key: from_json(text) for key, text in definition["space"].items()}
            self.metric, sampler = definition["metric"], definition["sampler"]
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise DataError(
                f"{file} cannot be read as the journal of a sweep ({error}): it is damaged, or "
                "another program's. Make a new sweep in another folder."
            ) from error
        samplers = optuna.samplers
        self.study.sampler = (
            samplers.TPESampler(constant_liar=True)
            if sampler == "tpe"
            else samplers.RandomSampler()
        )
        self.maximizes = self.study.direction == optuna.study.StudyDirection.MAXIMIZE

    def entries(self) -> list[Entry]:
        """Return the trials, in the order of their numbers."""
        return [self._entry(trial) for trial in self.study.get_trials(deepcopy=False)]

    def entry(self, number: int) -> Entry:
        return self.entries()[number]

    def _entry(self, trial: Any) -> Entry:
        drawn = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        values = {key: space.decoded(drawn[key]) for key in self.space if key in drawn}
        varied = {key: value for key, value in values.items() if not self.space[key].single()}
        return Entry(
            directory=self.directory,
            id=trial._trial_id,
            number=trial.number,
            state=trial.state.name.lower(),
            values=values,
            name=space.trial_name(trial.number, varied),
            value=trial.value,
            error=trial.user_attrs.get("error", ""),
            digests=trial.user_attrs.get("digests", ()),
            worker=trial.user_attrs.get("worker", {}),
        )

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
        for key, distribution in self.space.items():
            trial._suggest(key, distribution)
        digest = hashlib.sha256(files.read_bytes(self.directory / CONFIG)).hexdigest()[:8]
        trial.set_user_attr("digests", list(dict.fromkeys([*entry.digests, digest])))
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
