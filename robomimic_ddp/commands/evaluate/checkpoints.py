"""The checkpoints of a run: which there are, and what one of them says of its evaluation."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands.ckpt import contents
from robomimic_ddp.config import paths, tree
from robomimic_ddp.errors import CheckpointError, UsageError
from robomimic_ddp.verify import digest

LAST, MODELS, BEST_SUCCESS = "last.pth", "models", "best_success.pth"
_EPOCH = re.compile(r"epoch_(\d+)")
_BEST = ("*_success_*", "*_best_validation_*")
"""Hosts' names of the best checkpoints, by success and by loss."""
_OF_DATASETS = "lang"
"""A key in the metadata of hosts that call an environment by its dataset."""


@dataclass(frozen=True)
class Environment:
    """An environment that a policy plays in. number: its place among them, as in rollouts during
    training; dataset: the place of its metadata in the checkpoint; env_name: another simulator's
    name with the same metadata.
    """

    name: str
    number: int
    dataset: int
    env_name: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. shown: its name in the run; weights: a digest of them."""

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


def signature(run: Path, path: Path) -> tuple[str, int, int]:
    """Return what changes with a file: its name in the run, size and time. Raises OSError."""
    status = path.stat()
    name = path.relative_to(run) if run in path.parents else path
    return str(name), status.st_size, status.st_mtime_ns


def of_run(run: Path) -> list[Path]:
    """Return the files of all checkpoints that there are now: those of models/, the newest first,
    and then last.pth, which often is a copy of one of them.
    """
    dated = []
    for path in (*(run / MODELS).glob("*.pth"), run / LAST):
        with suppress(OSError):  # another program has removed it
            dated.append((path.name != LAST, path.stat().st_mtime_ns, path))
    return [path for *_, path in sorted(dated, reverse=True)]


def named(run: Path, words: Sequence[str]) -> list[Path]:
    """Return the files that the words of --checkpoints stand for, each once. Raises UsageError."""
    paths_of_words = [path for word in words for path in _of_word(run, word)]
    return list(dict.fromkeys(paths_of_words))


def _of_word(run: Path, word: str) -> list[Path]:
    present = of_run(run)
    models = [path for path in present if path.name != LAST]
    if word == "all":
        paths_of_word = present
    elif word == "last":
        paths_of_word = [path for path in present if path.name == LAST] or models[:1]
    elif word == "best":
        best = [path for pattern in _BEST for path in models if path.match(pattern)]
        paths_of_word = [path for path in (run / BEST_SUCCESS,) if path.is_file()] or best[:1]
    else:
        path = paths.expanded(word)
        paths_of_word = [path if path.exists() else run / path]
        present = [path for path in paths_of_word if path.is_file()]
    if not paths_of_word or not present:
        raise UsageError(
            f"--checkpoints {word}: {run} has no such checkpoint. Expected last, best, all "
            f"or the path of a file; the run has {_names(run) or 'none yet'}."
        )
    return [path.resolve() if path.is_symlink() else path for path in paths_of_word]


def _names(run: Path) -> str:
    names = [str(path.relative_to(run)) for path in of_run(run)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def copied(run: Path, path: Path, folder: Path) -> tuple[Path, Checkpoint]:
    """Copy a checkpoint into `folder`, where no training replaces it, and read it.

    Raises CheckpointError for one that is damaged, still being written, or has vanished.
    """
    try:
        before = signature(run, path)
        copy = Path(shutil.copyfile(path, folder / path.name))
        after = signature(run, path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be copied: {error}.") from error
    if before != after:
        raise CheckpointError(f"{path} is being written.")
    return copy, read(before, copy)


def read(file: tuple[str, int, int], path: Path, with_weights: bool = True) -> Checkpoint:
    """Return what a checkpoint says, without running code of it. file: its `signature`."""
    content = contents.read(path)
    try:
        config = files.parse_json(content["config"])
        environments = tuple(_environments(content, config))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{file[0]} does not say what its policy was trained for ({type(error).__name__}: "
            f'{error}). Expected a host\'s checkpoint with "config" and "env_metadata", such as '
            "last.pth or one of models/."
        ) from error
    match = _EPOCH.search(path.name)
    epoch = tree.at(content, "variable_state.epoch")
    if not isinstance(epoch, int):
        epoch = int(match[1]) if match else 0
    model = content["model"]
    weights = digest([model.get("nets"), model.get("ema")])[:16] if with_weights else ""
    return Checkpoint(file[0], file, epoch, weights, environments, config)


def _environments(content: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Environment]:
    """Yield the environments as the host's train script makes them: one for each dataset with
    `eval`, under the dataset's name (hosts before 0.5, and DROID's: the simulator's), and the
    additional ones.
    """
    metas = content["env_metadata"]
    metas = metas if isinstance(metas, list) else [metas]
    data = config["train"]["data"]
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
