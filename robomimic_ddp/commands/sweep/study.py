"""The folder of a sweep, and its trials in Optuna's journal: one file, for any number of workers.

DIR/sweep.journal    the study: definition, trials, their states and values
DIR/configs/         the config of all trials, or of each that was imported
DIR/trials/NAME/     the runs of a trial (one, in a folder with a time stamp)
DIR/logs/NAME.txt    what they printed
DIR/locks/           who looks after a trial, and whether it trains
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shlex
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.sweep import space
from robomimic_ddp.config import json_config, paths, tree
from robomimic_ddp.errors import DataError, UsageError
from robomimic_ddp.monitoring import history

JOURNAL = "sweep.journal"
_STUDY = "sweep"
_EARLIEST_PRUNING = 16
"""Trials are compared after this part of their epochs, then after 4 times as many, and so on."""
RECORD, REQUEUE = "ddp.json", "requeue"
"""checkpoint's RECORD_NAME and REQUEUE_NAME, without torch."""
_NO_VALUE = ("train.output_dir", "experiment.name")


@dataclass(frozen=True)
class Entry:
    """One trial. state: Optuna's, in lower case; `name`: of its folder; `value`: of the metric."""

    directory: Path
    id: int
    index: int
    state: str
    name: str
    values: Mapping[str, Any]
    value: float | None
    error: str

    @property
    def log(self) -> Path:
        return self.directory / "logs" / f"{self.name}.txt"

    @property
    def folder(self) -> Path:
        return self.directory / "trials" / self.name

    def run(self) -> Path | None:
        """The newest run that the trial has made."""
        runs = self.folder.iterdir() if self.folder.is_dir() else ()
        found = sorted(
            (run for run in runs if run.is_dir()), key=lambda run: ((run / RECORD).exists(), run)
        )
        return found[-1] if found else None

    @property
    def is_finished(self) -> bool:
        """Whether the last epoch of its run is done."""
        run = self.run()
        try:
            return run is not None and "outcome" in json.loads((run / RECORD).read_text("utf-8"))
        except (OSError, ValueError):
            return False

    @property
    def is_held(self) -> bool:
        """Whether a worker that shares the locks looks after it, or its training runs."""
        for name in ("worker", "training"):
            try:
                with open(self.directory / "locks" / f"{self.index:03d}.{name}") as file:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:  # nobody has made it, or the file system has no locks
                continue
        return False

    @property
    def has_stopped(self) -> bool:
        """Whether its run was stopped on request."""
        run = self.run()
        return run is not None and (run / REQUEUE).exists()

    def curve(self, metric: str) -> dict[int, float]:
        """Epoch -> the metric, the mean over environments; NaN is left out."""
        run = self.run()
        if run is None or not (run / history.FILE_NAME).is_file():
            return {}
        phase, key = metric.split("/")
        found: dict[int, list[float]] = {}
        for record in history.read(run):
            value = record["log"].get(key)
            if record["phase"] == phase and isinstance(value, (int, float)):
                found.setdefault(record["epoch"], []).append(value)
        means = {epoch: statistics.fmean(values) for epoch, values in found.items()}
        return {epoch: mean for epoch, mean in means.items() if not math.isnan(mean)}


class Sweep:
    """An opened sweep: `definition` is what `create` was given, `study` is Optuna's."""

    def __init__(self, directory: Path) -> None:
        optuna = load_optuna()
        self.directory = paths.expanded(directory).absolute()
        journal = self.directory / JOURNAL
        if not journal.is_file():
            raise DataError(
                f"{directory} has no {JOURNAL}; expected the folder of a sweep. Make one with "
                "robomimic-ddp sweep new or sweep import."
            )
        try:
            self.storage = _storage(journal)
            study = optuna.load_study(study_name=_STUDY, storage=self.storage)
            self.definition = study.user_attrs["definition"]
        except (KeyError, ValueError, AssertionError) as error:
            raise DataError(
                f"{journal} cannot be read as the journal of a sweep ({error}): it is damaged, or "
                "another program's. Make a new sweep in another folder."
            ) from error
        if self.definition["sampler"] == "tpe":
            study.sampler = optuna.samplers.TPESampler(constant_liar=True)
        else:
            study.sampler = optuna.samplers.RandomSampler()
        epochs = self.definition["epochs"]
        study.pruner = optuna.pruners.SuccessiveHalvingPruner(
            min_resource=max(1, epochs // _EARLIEST_PRUNING)
        )
        self.study, self.metric = study, self.definition["metric"]
        self.maximizes = space.METRICS[self.metric] == "maximize"

    def entries(self) -> list[Entry]:
        """The trials by their number; of one that was tried again the newest."""
        found = {}
        for trial in self.study.get_trials(deepcopy=False):
            attributes = trial.user_attrs
            if "index" in attributes:  # a trial that somebody has added by hand has none
                found[attributes["index"]] = Entry(
                    self.directory,
                    trial._trial_id,
                    attributes["index"],
                    trial.state.name.lower(),
                    attributes.get("name", f"{attributes['index']:03d}"),
                    attributes.get("values", {}),
                    trial.value,
                    attributes.get("error", ""),
                )
        return [found[index] for index in sorted(found)]

    def best(self, values: Sequence[float]) -> float:
        return max(values) if self.maximizes else min(values)

    def begin(self, entry: Entry) -> Any:
        """Optuna's trial of an unfinished entry, with its values; the caller has its lock."""
        from optuna.trial import Trial, TrialState

        if entry.state == "waiting":
            self.storage.set_trial_state_values(entry.id, TrialState.RUNNING)
        trial = Trial(self.study, entry.id)
        values = {key: _suggest(trial, key, one) for key, one in self.definition["space"].items()}
        if "values" not in trial.user_attrs:
            values = {key: _decoded(value) for key, value in values.items()}
            varied = {key: value for key, value in values.items() if self.varies(key)}
            trial.set_user_attr("name", space.trial_name(entry.index, varied))
            trial.set_user_attr("values", values)
        return trial

    def varies(self, key: str) -> bool:
        """Whether trials differ in `key`."""
        values = self.definition["space"].get(key)
        return not isinstance(values, list) or len(values) > 1

    def words(self, entry: Entry) -> list[str]:
        """The dot-list of a trial's training."""
        imported = self.definition["imported"]
        file = f"configs/{entry.index if imported else 0:03d}.json"
        own = {"train.output_dir": str(self.directory / "trials"), "experiment.name": entry.name}
        settings = {**({} if imported else entry.values), **own, "ddp.resume": "auto"}
        return [f"load_from={self.directory / file}", *space.words(settings)]

    def require_data(self) -> None:
        """Raises DataError where a dataset of a trial that is left is not there."""
        for entry in self.entries():
            file = self.directory / self.words(entry)[0].partition("=")[2]
            train = json_config.read_json(file, "").get("train") or {}
            searched = {} if self.definition["imported"] else self.definition["space"]
            known = {} if self.definition["imported"] else entry.values
            for values in [known] if known or not searched else space.samples(searched):
                prefix = "train."
                given = {k[len(prefix) :]: v for k, v in values.items() if k.startswith(prefix)}
                for path in paths.datasets({**train, **given}):
                    if entry.state != "complete" and not Path(path).exists():
                        raise DataError(
                            f"{path}, the dataset of trial {entry.name}, is not there: every trial "
                            "with it would fail. Expected a file, or an RLDS dataset's folder, on "
                            f"each machine that trains. Correct the path in {file}, or make "
                            "another sweep."
                        )

    def retry_failed(self) -> None:
        """Trials that have failed wait again, with their values and folder."""
        for entry in self.entries():
            if entry.state == "fail":
                trial = self.storage.get_trial(entry.id)
                kept = {key: trial.user_attrs[key] for key in ("index", "name", "values")}
                self.study.enqueue_trial(trial.params, user_attrs=kept)


def load_optuna() -> Any:
    """Optuna, quiet. Raises DataError where it is missing or too old."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise DataError(
            f"sweeps are kept by Optuna 4 or later, which cannot be imported: {error}. Install the "
            'extra: pip install ".[sweep]" in robomimic-ddp\'s checkout.'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _storage(journal: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(journal)))


def _suggest(trial: Any, key: str, one: Any) -> Any:
    """The trial's value. Listed ones are JSON text: Optuna has no lists."""
    if isinstance(one, list):
        return trial.suggest_categorical(key, [json.dumps(value) for value in one])
    if one["kind"] == "int":
        return trial.suggest_int(key, one["low"], one["high"])
    return trial.suggest_float(key, one["low"], one["high"], log=one["kind"] == "log")


def _decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def new(
    directory: Path,
    file: Path,
    searched: space.Space,
    sampler: str = "grid",
    trials: int | None = None,
    metric: str | None = None,
    prune: bool = False,
) -> int:
    """Makes a sweep over `searched` in `directory`; returns its number of trials.

    Raises UsageError, ConfigError and OptionError, with nothing written, for what could not be
    trained.
    """
    load_optuna()
    _require_free(directory)
    if not searched:
        raise UsageError(f"no values to try: give KEY=VALUE,VALUE,... such as {space.SEED}=1,2,3.")
    ranges = [key for key, one in searched.items() if not isinstance(one, list)]
    if sampler == "grid" and (ranges or trials is not None):
        what = f"{ranges[0]} is a range" if ranges else "--trials is given"
        raise UsageError(
            f"--sampler grid, but {what}: a grid tries each combination of listed values. Use "
            "--sampler random or tpe with --trials N, or list values."
        )
    if sampler != "grid" and not (trials or 0) > 0:
        raise UsageError(f"--sampler {sampler}: give the number of trials, --trials N.")
    if sampler == "tpe" and len(searched.get(space.SEED, [1])) > 1:
        raise UsageError(
            f"--sampler tpe with several values of {space.SEED} would search for the luckiest "
            "seed. Search with one seed, then train the best values in a grid over seeds."
        )
    settings = json_config.read_json(file, "--config ")
    combinations = list(space.grid(searched) if sampler == "grid" else space.samples(searched))
    configs = [space.checked(paths.expanded(file), values) for values in combinations]
    definition = {
        "space": searched,
        "sampler": sampler,
        "metric": space.metric_of(metric, configs),
        "prune": prune,
        "epochs": max(config.train.num_epochs for config in configs),
        "imported": False,
    }
    queue: list[tuple[dict, dict]] = []
    if sampler == "grid":
        for index, values in enumerate(combinations):
            varied = {key: value for key, value in values.items() if len(searched[key]) > 1}
            attrs = {"index": index, "name": space.trial_name(index, varied), "values": values}
            queue.append(({key: json.dumps(value) for key, value in values.items()}, attrs))
    else:
        queue = [({}, {"index": index}) for index in range(trials or 0)]
    _write(directory, definition, queue, {"configs/000.json": settings})
    return len(queue)


def import_files(
    directory: Path, given: Sequence[str], metric: str | None = None, prune: bool = False
) -> int:
    """Makes a sweep of configs that are there: JSON files, or the shell script that a
    ConfigGenerator of the host's has written. Returns its number of trials.
    """
    load_optuna()
    _require_free(directory)
    files = [file for one in given for file in ([one] if one.endswith(".json") else _named_in(one))]
    settings = [json_config.read_json(file, "") for file in files]
    configs = [space.checked(paths.expanded(file), {}) for file in files]
    named = [{k: v for k, v in tree.named(one) if k not in _NO_VALUE} for one in settings]
    keys = [key for key in {k: 0 for one in named for k in one} if not key.startswith("meta.")]
    varied = [
        key for key in keys if len({json.dumps(one.get(key), sort_keys=True) for one in named}) > 1
    ]
    queue = []
    for index, (one, config) in enumerate(zip(named, configs)):
        name = space.trial_name(index, {}, str(config.experiment.name))
        values = {key: one.get(key) for key in varied}
        queue.append(
            ({"config": json.dumps(index)}, {"index": index, "name": name, "values": values})
        )
    definition = {
        "space": {"config": list(range(len(files)))},
        "sampler": "grid",
        "metric": space.metric_of(metric, configs),
        "prune": prune,
        "epochs": max(config.train.num_epochs for config in configs),
        "imported": True,
    }
    kept = {f"configs/{index:03d}.json": one for index, one in enumerate(settings)}
    _write(directory, definition, queue, kept)
    return len(queue)


def _named_in(script: str) -> list[str]:
    """The configs that the lines of a shell script train."""
    try:
        lines = paths.read_text(paths.expanded(script)).splitlines()
        words = [shlex.split(line, comments=True) for line in lines]
    except (OSError, ValueError) as error:
        raise UsageError(f"{script} cannot be read as a shell script: {error}.") from error
    found = []
    for line in words:
        for word, following in zip(line, [*line[1:], ""]):
            name, equals, value = word.partition("=")
            if name in ("--config", "load_from"):
                found.append(value if equals else following)
    if not found:
        raise UsageError(
            f"{script} trains nothing: expected JSON files, or a shell script with lines such as "
            "python train.py --config FILE.json."
        )
    return found


def _require_free(directory: Path) -> None:
    folder = paths.expanded(directory)
    there = [name for name in (JOURNAL, "trials", "configs") if (folder / name).exists()]
    if there:
        raise UsageError(
            f"{directory} has {there[0]} already, of another sweep. Train that one with "
            "robomimic-ddp sweep run, or name another folder."
        )
    reason = paths.why_not_writable(folder)
    if reason is not None:
        raise UsageError(f"{directory} cannot be written to: {reason}.")


def _write(
    directory: Path,
    definition: Mapping[str, Any],
    queue: Sequence[tuple[dict, dict]],
    files: Mapping[str, dict],
) -> None:
    """The journal comes last, and whole: a folder without one is no sweep."""
    optuna = load_optuna()
    folder = paths.expanded(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("logs", "locks", "trials", "configs"):
        (folder / name).mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary = tempfile.mkdtemp(dir=folder)
    try:
        journal = Path(temporary, JOURNAL)
        study = optuna.create_study(
            study_name=_STUDY,
            storage=_storage(journal),
            direction=space.METRICS[definition["metric"]],
        )
        study.set_user_attr("definition", dict(definition))
        for params, attrs in queue:
            study.enqueue_trial(params, user_attrs=attrs)
        os.rename(journal, folder / JOURNAL)
    finally:
        shutil.rmtree(temporary)
