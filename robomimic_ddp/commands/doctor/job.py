"""A job's config: options and batch against ranks, and its data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.doctor.findings import FAIL, OK, WARN, Context, Finding
from robomimic_ddp.config import env, machine, options, paths, validate
from robomimic_ddp.config.env import LaunchEnv
from robomimic_ddp.config.plan import make_plan
from robomimic_ddp.data.hdf5.structure import opened
from robomimic_ddp.data.rlds.index.source import find_dataset
from robomimic_ddp.errors import ConfigError, DataError, RobomimicDDPError


def check_config(context: Context) -> Iterator[Finding]:
    config = context.config
    if config is None:
        return
    train, world = context.section("train"), context.world
    section = config.get("ddp") or {}
    try:
        validate.require_possible_file(config)
        if not isinstance(section, Mapping):
            raise ConfigError(
                f'"ddp" is {section!r}; expected a section of options, such as '
                '{"lr_scaling": "linear"}.'
            )
        resolved = options.resolve(environment=env.option_texts(context.variables), file=section)
        plan = make_plan(
            LaunchEnv(True, 0, world, 0, world),
            resolved,
            visible_gpus=len(context.gpus),
            use_cuda=bool(context.gpus),
            batch_size=train.get("batch_size", 1),
            data_workers=train.get("num_data_workers") or 0,
            cores=machine.usable_cores(),
        )
    except RobomimicDDPError as error:
        place = "environment" if env.OPTION_PREFIX in str(error) else "config"
        yield Finding("config", FAIL, str(error), f"Correct it in the {place}.")
        return
    yield Finding(
        "config",
        OK,
        f"{plan.batch_per_rank} samples per rank x {world} = {plan.samples_per_step} per step",
    )
    yield from _data(train)


def _data(train: Mapping[str, Any]) -> Iterator[Finding]:
    if train.get("data_path"):
        names = train.get("dataset_names") or [""]
        if not isinstance(names, (str, list)):
            found = f"train.dataset_names={names!r}: expected a list of names, or one name"
            yield Finding("config", FAIL, found, "Correct it in the config.")
            return
        for name in [names] if isinstance(names, str) else names:
            yield _rlds(str(train["data_path"]), str(name), train.get("dataset_version"))
        return
    for path in _data_paths(train):
        if not path.exists():
            yield Finding("config", FAIL, f"no data at {path}", "Correct train.data / data_path.")
        elif not os.access(path, os.R_OK):
            yield Finding("config", FAIL, f"{path} may not be read", "Change its permissions.")
        else:
            yield _hdf5(path)


def _rlds(root: str, name: str, version: str | None) -> Finding:
    try:
        folder = find_dataset(root, name, version)
    except DataError as error:
        return Finding("config", FAIL, str(error), "Correct train.data_path / dataset_names.")
    return Finding("config", OK, f"data: {folder}")


def _hdf5(path: Path) -> Finding:
    """Whether a file can be opened and has episodes."""
    if path.is_dir():
        return Finding("config", OK, f"data: {path}")
    try:
        with opened(path) as file:
            episodes = len(file.episodes())
    except ImportError:
        return Finding("config", WARN, f"{path} was not opened: no h5py", "pip install h5py")
    except (OSError, DataError) as error:
        found = f"{path} has no robomimic data: {str(error).strip()}"
        return Finding(
            "config", FAIL, found, "Copy it again; `git lfs pull` where it is a pointer."
        )
    return Finding("config", OK, f"data: {path}, {episodes} episode(s)")


def _data_paths(train: Mapping[str, Any]) -> list[Path]:
    data = train.get("data") or []
    entries = data if isinstance(data, list) else [data]
    entries = [{"path": entry} if isinstance(entry, str) else entry for entry in entries]
    return [
        paths.expanded(entry["path"])
        for entry in entries
        if isinstance(entry, Mapping) and entry.get("path")
    ]
