"""The checkpoints of a run, and what each of them says about its evaluation."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands.ckpt import contents
from robomimic_ddp.config import paths, tree
from robomimic_ddp.config.host import host_config_check
from robomimic_ddp.errors import CheckpointError, DataError, UsageError
from robomimic_ddp.monitoring.records import evaluation
from robomimic_ddp.terminal import listed

LAST, MODELS, BEST_SUCCESS = "last.pth", "models", "best_success.pth"
_BEST = ("*_success_*", "*_best_validation_*")
"""Hosts' names of the best checkpoints, by success and by loss."""
_OF_DATASETS = "lang"
"""A key in the metadata of hosts that call an environment by its dataset."""
_OF_LAST_DATASET = "env_lang"
"""A key in the metadata of robocasa's hosts: a checkpoint has those of the last dataset, whose
entry of train.data has its own horizon and `do_eval`.
"""


@dataclass(frozen=True)
class Environment:
    """An environment that a policy plays in. number: its index among them, as in rollouts during
    training; dataset: the index of its metadata in the checkpoint; env_name: the name of another
    simulator with the same metadata; horizon: steps of an episode, None for the config's.
    """

    name: str
    number: int
    dataset: int
    env_name: str | None = None
    horizon: int | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. shown: its name in the run; file: its `signature`; weights: their
    digest.
    """

    shown: str
    file: tuple[str, int, int]
    epoch: int
    weights: str
    environments: tuple[Environment, ...]
    config: Mapping[str, Any]

    def number(self, key: str, default: int) -> int:
        """Return a whole number of the checkpoint's config."""
        value = tree.at(self.config, key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    @property
    def is_due(self) -> bool:
        """Whether training would have played its rollouts after this epoch."""
        rate = max(1, self.number("experiment.rollout.rate", 1))
        late = self.epoch > self.number("experiment.rollout.warmstart", 0)
        return late and self.epoch % rate == 0

    @property
    def is_last_epoch(self) -> bool:
        """Whether training ends with this epoch."""
        return self.epoch >= self.number("train.num_epochs", self.epoch + 1)


def name_in(run: Path, path: Path) -> str:
    """Return the path in the run's folder; of a file elsewhere, the path itself."""
    return str(path.relative_to(run) if run in path.parents else path)


def signature(run: Path, path: Path) -> tuple[str, int, int]:
    """Return the name in the run, size and time of a file, which tell its versions apart. Raises
    OSError.
    """
    status = path.stat()
    return name_in(run, path), status.st_size, status.st_mtime_ns


def of_run(run: Path) -> list[Path]:
    """Return the files of all present checkpoints: those of models/, the newest first, and then
    last.pth, which often is a copy of one of them.
    """
    dated = []
    for path in (*(run / MODELS).glob("*.pth"), run / LAST):
        with suppress(OSError):  # another program has removed it
            status = path.stat() if path.exists() else path.lstat()  # of a link to nothing
            dated.append((path.name != LAST, status.st_mtime_ns, path))
    return [path for *_, path in sorted(dated, reverse=True)]


def select(run: Path, words: Sequence[str]) -> list[Path]:
    """Return the files that the words of --checkpoints select, each once. Raises UsageError."""
    return list(dict.fromkeys(path for word in words for path in _select(run, word)))


def _select(run: Path, word: str) -> list[Path]:
    present = of_run(run)
    models = [path for path in present if path.name != LAST]
    if word == "all":
        selected = present
    elif word == "last":
        selected = [path for path in present if path.name == LAST] or models[:1]
    elif word == "best":
        best = [path for pattern in _BEST for path in models if path.match(pattern)]
        selected = [path for path in (run / BEST_SUCCESS, *best[:1]) if path.is_file()][:1]
    else:
        path = paths.expanded(word)
        path = path if path.exists() else run / path
        selected = [path] if path.is_file() else []
    if not selected:
        if not present:
            other = paths.example_below(run, LAST)
            raise UsageError(
                f"{run} has no checkpoint, neither models/*.pth nor {LAST}. Expected the folder of "
                f"a run that has saved one{other}."
            )
        raise UsageError(
            f"--checkpoints {word}: {run} has no such checkpoint. Expected last, best, all "
            f"or the path of a file; the run has {listed(p.relative_to(run) for p in present)}."
        )
    return [Path(os.path.realpath(path)) for path in selected]  # as the run's folder is given


def copy_and_read(run: Path, path: Path, folder: Path) -> tuple[Path, Checkpoint]:
    """Copy a checkpoint below `folder`, where no training replaces it, and read it. Each copy has a
    new path, by which workers recognise its policy. A copy that cannot be read is removed.

    Raises CheckpointError for a file that is damaged, still being written, or has vanished, and
    DataError for a policy without a simulator.
    """
    with ExitStack() as stack:
        try:
            before = signature(run, path)
            read(before, path, with_weights=False)  # before a large file is copied
            parent = tempfile.mkdtemp(dir=folder)
            stack.callback(shutil.rmtree, parent, ignore_errors=True)
            copy = Path(shutil.copyfile(path, Path(parent, path.name)))
            after = signature(run, path)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be copied: {error}.") from error
        if before != after:
            raise CheckpointError(f"{path} is being written.")
        checkpoint = read(before, copy)
        if checkpoint.shown == BEST_SUCCESS and not checkpoint.epoch:  # older hosts: in names only
            epochs = {line["weights"]: line["epoch"] for line in evaluation.results(run)}
            checkpoint = replace(checkpoint, epoch=epochs.get(checkpoint.weights, 0))
        stack.pop_all()
    return copy, checkpoint


def read(file: tuple[str, int, int], path: Path, with_weights: bool = True) -> Checkpoint:
    """Return what a checkpoint says, without running code of it. file: its `signature`.

    Raises CheckpointError for another file, DataError for a policy without a simulator.
    """
    content = contents.read(path)
    if content.get("env_metadata") == {}:  # DROID's hosts
        raise DataError(
            f"{file[0]} has empty env_metadata: its policy was trained on data that names no "
            "simulator, such as a real robot's, so it cannot be evaluated here. Evaluate it on "
            "the robot."
        )
    try:
        config = files.parse_json(content["config"])
        if program := host_config_check.program_in(config):
            raise ValueError(f"{program} is not the name of a class, and would run")
        environments = tuple(_environments(content, config))
        epoch = contents.saved_epoch(content, path.name)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{file[0]} does not say what its policy was trained for ({type(error).__name__}: "
            f'{error}). Expected a host\'s checkpoint with "config" and "env_metadata", such as '
            "last.pth or one of models/."
        ) from error
    if not environments:
        raise DataError(
            f"{file[0]} names no environment to play in: its env_metadata is empty, or each entry "
            'of train.data that it has metadata of has "eval" or "do_eval": false. Expected a '
            "checkpoint of a training with an entry that is evaluated, or with "
            "experiment.additional_envs."
        )
    weights = contents.weights_digest(content, file[0]) if with_weights else ""
    return Checkpoint(file[0], file, epoch, weights, environments, config)


def _environments(content: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Environment]:
    """Yield the environments as the host's train script makes them: one for each dataset with
    `eval`, under the dataset's name (hosts before 0.5, and DROID's: the simulator's), and the
    additional ones.
    """
    metas = content["env_metadata"]
    data = config["train"]["data"]
    if isinstance(data, list) and isinstance(metas, Mapping) and _OF_LAST_DATASET in metas:
        yield from _of_last_dataset(metas, data)
        return
    metas = metas if isinstance(metas, list) else [metas]
    envs: dict[str, Environment] = {}
    for dataset, meta in enumerate(metas):
        entry = data[dataset] if isinstance(data, list) else {}
        names = {str(meta["env_name"]): None}
        if _OF_DATASETS in meta:
            names = {str(entry.get("key") or Path(entry["path"]).stem): None}
        others = (tree.at(config, "experiment.additional_envs") or ()) if not dataset else ()
        names |= {str(other): str(other) for other in others}
        for name, env_name in names.items() if entry.get("eval", True) else ():
            number = envs[name].number if name in envs else len(envs)  # as in the host's dict
            envs[name] = Environment(name, number, dataset, env_name)
    yield from envs.values()


def _of_last_dataset(meta: Mapping[str, Any], data: list[Mapping]) -> Iterator[Environment]:
    """Yield the environment of the last entry, as those hosts' rollouts number and end it."""
    played = [entry for entry in data if entry.get("do_eval", True) is True]
    if played and played[-1] is data[-1]:
        horizon = data[-1].get("horizon")
        if horizon is not None and not tree.is_whole(horizon, 1):
            raise ValueError(f"its horizon is {str(horizon)[:20]}")
        yield Environment(str(meta["env_name"]), len(played) - 1, 0, horizon=horizon)
