"""What every rank would refuse, found before torchrun starts them: the ranks' own checks of
options, config and data, those that need no torch.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.launch import devices, torchrun
from robomimic_ddp.commands.launch.arguments import Settings
from robomimic_ddp.config import host_config, host_keys, json_config, paths, tree
from robomimic_ddp.config.dotlist import parse_dotlist
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.data.rlds import tfds_sharding
from robomimic_ddp.data.rlds.schema.job_config import dataset_configs
from robomimic_ddp.errors import LaunchError, PatchError, RobomimicDDPError, UsageError

_SLOW = ("torch", "tensorflow", "jax")
_EPISODES = 20
"""Episodes of an HDF5 file that are looked at here; the ranks look at more."""
_OWN_KEYS = re.compile(r"\bunlocked\(\)|\bunlock_keys\(\)")
"""A train script that may declare keys before it reads the config."""
_KEEPS_CONFIG = ("--debug", "--resume")
"""Flags of hosts' train.py that change neither keys nor data."""


def runs_folder(settings: Settings) -> Path | None:
    """Return the folder of the experiment's runs; None where only the host can tell it."""
    layers = [torchrun.config_of(settings)]
    if settings.takes_dot_list:
        layers.append(parse_dotlist([word for word in settings.overrides if "=" in word]))
    values: dict[str, Any] = {}
    for key in ("train.output_dir", "experiment.name"):
        for layer in layers:
            values[key] = tree.at(layer, key) or values.get(key)
    folder = Path(os.path.expanduser(str(values["train.output_dir"])))
    known = all(values.values()) and folder.is_absolute()
    return folder / str(values["experiment.name"]) if known else None


def problems(settings: Settings, variables: Mapping[str, str]) -> list[RobomimicDDPError]:
    """Return what would stop all ranks, or should."""
    unpatched, absent = torchrun.unpatched(settings), devices.absent(variables)
    errors = [PatchError(unpatched)] if unpatched else []
    errors += [UsageError(absent)] if absent else []
    refused = None if unpatched else refusal(settings)
    return [*errors, refused] if refused else errors


def refusal(settings: Settings) -> RobomimicDDPError | None:
    """Return the error with which all ranks would stop, or None; within about a second.

    Returns None too where that is not certain: an entry or a host's config that is not as
    robomimic's, or that needs torch. Data is looked for only if there is one node: others may have
    it elsewhere.
    """
    _, entry = torchrun.entry(settings)
    try:
        with _without(_SLOW), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            config = _config(settings, entry)
        if config is not None and settings.nodes == 1:
            _require_data(config)
    except RobomimicDDPError as error:
        is_local = isinstance(error, LaunchError) or isinstance(error.__cause__, ImportError)
        return None if is_local else error
    except Exception:  # of the host's code: the ranks show it
        return None
    return None


def _config(settings: Settings, entry: str) -> Any:
    """Return the config of the ranks, or None if it cannot be known. Raises the ranks' errors."""
    path = str(paths.expanded(settings.config))
    if settings.takes_dot_list:
        if "robomimic_ddp.train_rlds" not in entry or {"-h", "--help"} & set(settings.overrides):
            return None  # the host's own entry, with layers that we do not know
        config, _ = host_config.build_config([f"load_from={path}", *settings.overrides])
        host_keys.require_possible(config)
        return config
    flags = {word for word in settings.overrides if not word.startswith("ddp.")}
    if "prepare_config" not in entry or _OWN_KEYS.search(entry) or flags - {*_KEEPS_CONFIG}:
        return None
    from robomimic.config import config_factory

    content = json_config.read_json(path, "--config ")
    config = config_factory(content["algo_name"])
    host_config.prepare_config(config, content)
    with config.values_unlocked():
        config.update(content)
    return config


def _require_data(config: Any) -> None:
    hdf5 = host_config.ROBOMIMIC_FORMAT
    if host_config.uses_rlds(config):
        dataset_configs(config)
    elif host_config.trains_by_own_pipeline(config):
        tfds_sharding.require_datasets(config.train.data_path, config.train.dataset_names)
    elif config.train.get("data_format", hdf5) == hdf5:
        hdf5_validate.check(config, _EPISODES)


@contextmanager
def _without(modules: Sequence[str]) -> Iterator[None]:
    """Have imports of those `modules` that are not imported yet raise ImportError in the block."""
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
