"""Validate HDF5 datasets before a run starts: shapes and names, no frames.

Hosts find most of this out later, as a KeyError or an assertion without the file's name, on every
rank at once, and some of it never. Layout: robomimic's `data/demo_N/{obs/KEY, ACTION KEY}` (in some
forks `actions/ACTION KEY`), with filter keys under `mask/`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import paths, tree
from robomimic_ddp.data.hdf5.structure import Structure, opened
from robomimic_ddp.errors import ConfigError, DataError

VALIDATION_KEY = "hdf5_validation_filter_key"
LANGUAGE_KEYS = ("lang", "raw")
"""Observation keys with these words may be made by the host instead of being stored."""
MOST_EPISODES = 2000
"""Most episodes of a file that are validated, evenly spread: opening one takes a moment."""


def check(config: Any) -> None:
    """Raise DataError or ConfigError for an unreadable dataset. One rank checks for all."""
    train, validate = config.train, bool(config.experiment.get("validate", False))
    filters = [train.get("hdf5_filter_key", None)]
    valid_key = train.get(VALIDATION_KEY, None)
    if validate and VALIDATION_KEY not in train:  # robomimic 0.1 has other names
        prefix = f"{filters[0]}_" if filters[0] is not None else ""
        filters = [f"{prefix}train", f"{prefix}valid"]
    elif validate:
        filters.append(valid_key)
        if None in filters:
            raise ConfigError(
                f"experiment.validate is true, but train.hdf5_filter_key={filters[0]!r} and "
                f"train.hdf5_validation_filter_key={valid_key!r}: both must name a filter key of "
                "the dataset. Make them with the host's scripts/split_train_val.py."
            )
    elif valid_key is not None:
        raise ConfigError(
            f"train.hdf5_validation_filter_key={valid_key!r}, but experiment.validate is false: "
            "nothing would be validated. Set experiment.validate=true, or the key to null."
        )
    if train.get("data", None) is None and any(paths.datasets(train)):
        return  # under other names and filter keys, which the host knows
    for entry in entries(train.get("data", None)):
        _File(entry, config, filters).check()


def entries(data: Any) -> list[Mapping[str, Any]]:
    """Return `train.data` as a list of {"path": ...}."""
    entries = [data] if isinstance(data, str) else data  # hosts also accept one path
    if not isinstance(entries, Sequence) or not entries:
        raise ConfigError(
            f"train.data={data!r}: expected at least one dataset, as a list of "
            '{"path": "/data/set.hdf5"}.'
        )
    entries = [{"path": entry} if isinstance(entry, str) else entry for entry in entries]
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
            raise ConfigError(
                f"train.data contains {entry!r}: expected an entry with a path, such as "
                '{"path": "/data/set.hdf5"}.'
            )
    weights = [entry.get("weight", 1.0) for entry in entries]
    several = len(entries) > 1  # hosts ignore the weight of a single dataset
    if several and not tree.are_weights(weights):
        raise ConfigError(
            f"train.data has the weights {weights}: expected one number of at least 0 for each "
            "dataset, not all 0, and a finite sum."
        )
    return entries


class _File:
    """One entry of `train.data`, and what this run reads of it."""

    def __init__(
        self, entry: Mapping[str, Any], config: Any, filters: Sequence[str | None]
    ) -> None:
        self.path = os.path.expanduser(entry["path"])
        # Hosts use an entry's key both for training and for validation.
        self.has_filter = "filter_key" in entry
        self.filters = [entry.get("filter_key", key) for key in filters]
        self.actions = list(config.train.get("action_keys", ["actions"]) or ())
        self.observations = [
            key for key in config.all_obs_keys if not any(word in key for word in LANGUAGE_KEYS)
        ]
        loads_next = config.train.get("hdf5_load_next_obs", False)
        self.groups = ("obs", "next_obs") if loads_next else ("obs",)
        kinds = tree.named(config.get("observation", {}))
        self.pictures = {
            key
            for kind, keys in kinds
            if "modalities." in kind and kind.endswith((".rgb", ".depth"))
            for key in keys
        }
        self.first: dict[str, tuple[int, ...]] = {}

    def check(self) -> None:
        if not os.path.lexists(self.path):
            raise DataError(
                f"there is no dataset {self.path} (looked for {Path(self.path).absolute()}). "
                "Check the path in train.data."
            )
        if os.path.isdir(self.path):
            raise DataError(
                f"{self.path} of train.data is a folder: an HDF5 file is needed. For RLDS "
                "datasets: train.data_format=droid_rlds, train.data_path and train.dataset_names."
            )
        with ExitStack() as stack:
            try:
                file = stack.enter_context(opened(self.path))
            except OSError as error:
                raise DataError(
                    f"{self.path} cannot be opened as HDF5 ({error}): another format, cut off, "
                    "still being written, or not readable. Copy or write it again."
                ) from error
            self._check_content(file)

    def _check_content(self, file: Structure) -> None:
        everything = file.episodes()
        self._check_env_args(file)
        chosen = [self._episodes(file, key, everything) for key in self.filters]
        if len(chosen) == 2 and not self.has_filter and set(chosen[0]) & set(chosen[1]):
            both = sorted(set(chosen[0]) & set(chosen[1]))
            raise DataError(
                f"{self.path}: {both[0]} is in both filter keys, {self.filters[0]!r} for "
                f"training and {self.filters[1]!r} for validation. Split it again."
            )
        names = list(dict.fromkeys(name for episodes in chosen for name in episodes))
        for name in names[:: max(1, len(names) // MOST_EPISODES)]:
            self._check_episode(file, name)

    def _check_env_args(self, file: Structure) -> None:
        try:
            env_args = files.parse_json(file.attribute("data", "env_args"))
            if not isinstance(env_args, dict):
                raise ValueError(f"found {env_args!r}")
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self.path}: the attribute env_args of its group data is missing or not a JSON "
                f"object ({error}). Hosts read the environment's name there; write one, such as "
                '{"env_name": "robot", "type": 2, "env_kwargs": {}}.'
            ) from error

    def _episodes(self, file: Structure, key: str | None, everything: list[str]) -> list[str]:
        """Return the names of the episodes of a filter key, or of all."""
        names = everything
        if key is not None:
            known = file.names("mask")
            if key not in known:
                raise DataError(
                    f"{self.path} has no filter key {key!r}: found {', '.join(known) or 'none'}. "
                    "Make it with the host's scripts/split_train_val.py, or set "
                    "train.hdf5_filter_key and train.hdf5_validation_filter_key to what is there."
                )
            names = file.mask(key)
            if not names:
                raise DataError(f"{self.path}: filter key {key!r} names no episode. Add some.")
        there = set(everything)
        for name in names:
            if name not in there:
                raise DataError(
                    f"{self.path}: filter key {key!r} names {name}, which is not there. Make the "
                    "filter key again."
                )
            if not name[5:].isdecimal():
                raise DataError(
                    f"{self.path}: data/{name} is not the name of an episode; hosts sort them by "
                    "the number in demo_N. Rename it."
                )
        return names

    def _check_episode(self, file: Structure, name: str) -> None:
        file.group(f"data/{name}")
        where, steps = f"{self.path}: {name}", file.steps(name)
        actions = {_action_place(file, name, key): key for key in self.actions}
        observations = {f"{group}/{key}": key for group in self.groups for key in self.observations}
        wanted = {**actions, **observations}
        for place, key in wanted.items():
            in_group = place == "actions" and hasattr(file.find(f"data/{name}/actions"), "items")
            shape = None if in_group else file.numbers(f"data/{name}/{place}")
            if shape is None:
                remedy = f"Take {key!r} out of the config, or add it to the dataset."
                if place.startswith("next_obs/"):
                    remedy = "Add it to the dataset: train.hdf5_load_next_obs=true asks for it."
                raise DataError(
                    f"{where} does not contain {place!r}: found {', '.join(_keys(file, name))}. "
                    f"{remedy}"
                )
            if place in actions and len(shape) != 2:
                raise DataError(
                    f"{where}: {place!r} has shape {shape}; actions are [steps, dimensions]. Write "
                    "the dataset again."
                )
            if key in self.pictures and place not in actions and len(shape) != 4:
                raise DataError(
                    f"{where}: {place!r} has shape {shape}, but observation.modalities lists it as "
                    "images, which are [steps, height, width, channels]. List it under low_dim, "
                    "or write the dataset again."
                )
            file.require_steps(name, place, shape, steps)
            expected = self.first.setdefault(place, shape[1:])
            if shape[1:] != expected:
                raise DataError(
                    f"{where}: {place!r} has shape {shape[1:]} per step, but other episodes have "
                    f"{expected}. A policy needs one shape: use episodes that agree."
                )


def _action_place(file: Structure, episode: str, key: str) -> str:
    """Return the place of an action in an episode: at its top, or in a group `actions`."""
    parts = file.find(f"data/{episode}/actions")
    grouped = hasattr(parts, "items") and file.find(f"data/{episode}/actions/{key}") is not None
    return f"actions/{key}" if grouped else key


def _keys(file: Structure, episode: str) -> Iterator[str]:
    """Yield the keys of an episode, observations with their group, broken links included."""
    for key in file.names(f"data/{episode}"):
        try:
            inside = file.names(f"data/{episode}/{key}")
        except DataError:  # a dataset, or a broken link
            yield key
        else:
            yield from (f"{key}/{inner}" for inner in inside)
