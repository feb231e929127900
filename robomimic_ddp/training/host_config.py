"""Prepares the host's config: removes our section, declares RLDS keys, finds RLDS datasets.

Hosts lock the keys of their config. Ours are declared only if a config uses them, so that the
unpatched host can read the config.json of a run on HDF5.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robomimic_ddp.checkpoint import file_check
from robomimic_ddp.config import dotlist, paths, validate
from robomimic_ddp.config.entry_options import Notes, attach_notes, notes_of
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.config.rlds_keys import DATA_FORMAT, DEFAULTS
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.data.rlds.index.source import is_rlds_folder
from robomimic_ddp.distributed import main_rank
from robomimic_ddp.errors import ConfigError

__all__ = [
    "check_inputs",
    "common_directory",
    "declare_rlds_keys",
    "experiment_directory",
    "fill_rlds_data",
    "is_rlds_folder",
    "prepare_config",
    "printed_in_one_line",
    "reads_rlds_itself",
    "uses_rlds",
]

ROBOMIMIC_FORMAT = "robomimic"
OUR_KEY = "data_cache_dir"
"""A key that no host has; it shows that ours are declared."""


@contextmanager
def printed_in_one_line(config: Any) -> Iterator[None]:
    """For the block, the first `print(config)` of the host gives one line; what else asks for its
    text gets all of it.
    """
    kind = next(base for base in type(config).__mro__ if "__repr__" in vars(base))
    whole = kind.__repr__
    once = iter(["(ddp.log=compact: see config.json in the run directory)"])

    def short(self: Any) -> str:
        return next(once, None) or whole(self) if self is config else whole(self)

    with swapped(kind, "__repr__", short):
        yield


def prepare_config(config: Any, external: MutableMapping) -> Any:
    """Removes the section "ddp" from `external` (in place) and declares the RLDS keys that it uses.

    Returns the host's `config`, with our options attached: those of the section, and
    `ddp.NAME=value` of the command line. Raises ConfigError for a key that the host does not
    declare, and for a value of another type than its default's.
    """
    section = external.pop("ddp", None) or {}
    if not isinstance(section, Mapping):
        raise ConfigError(
            f'"ddp" is {section!r}; expected a section of options, such as '
            '{"lr_scaling": "linear"}.'
        )
    noted = notes_of(config)
    given = noted.command_line_options or dotlist.options()
    keys = noted.command_line_keys or dotlist.keys()
    attach_notes(config, Notes(dict(section), given, keys))
    train = external.get("train")
    if isinstance(train, Mapping) and train.get("data_format") is not None:
        declare_rlds_keys(config)
    validate.require_known(config, external)
    return config


def declare_rlds_keys(config: Any) -> None:
    """Adds the RLDS keys that `config` lacks, unless the host has an RLDS pipeline."""
    if reads_rlds_itself(config):
        return
    with config.unlocked():
        for dotted, default in DEFAULTS.items():
            section, name = dotted.split(".")
            if name not in config[section]:
                config[section][name] = default


def uses_rlds(config: Any) -> bool:
    """Whether the run reads RLDS data through our loader."""
    return _format_is_rlds(config) and not reads_rlds_itself(config)


def reads_rlds_itself(config: Any) -> bool:
    """Whether the host has an RLDS pipeline: it declares the format, not our keys."""
    return "data_format" in config.train and OUR_KEY not in config.train


def trains_by_own_pipeline(config: Any) -> bool:
    """Whether the run reads RLDS data through the host's pipeline."""
    return _format_is_rlds(config) and reads_rlds_itself(config)


def _format_is_rlds(config: Any) -> bool:
    return "data_format" in config.train and config.train.data_format == DATA_FORMAT


def fill_rlds_data(config: Any) -> None:
    """Collective: for an RLDS run, lists the dataset folders in `train.data`, which hosts iterate
    over. For a host's RLDS pipeline only checks that the datasets exist. Raises DataError.
    """
    if not uses_rlds(config):
        if _format_is_rlds(config):
            from robomimic_ddp.data.rlds import tfds_sharding

            places = config.train.data_path, config.train.dataset_names
            main_rank.on_main(tfds_sharding.require_datasets, *places)
        return
    from robomimic_ddp.data.rlds import host_datasets

    with config.values_unlocked():
        config.train.data = main_rank.on_main(host_datasets.dataset_configs, config)


def check_inputs(config: Any, resuming: bool = False, trusts: bool = False) -> None:
    """Collective: the main rank validates the HDF5 datasets and the checkpoint of `config`, before
    anything is created. Raises DataError, ConfigError or CheckpointError on all ranks.

    resuming: experiment.ckpt_path is not read again; trusts: the user trusts that file.
    """
    main_rank.on_main(_check_output, config)
    data_format = config.train.get("data_format", ROBOMIMIC_FORMAT)
    formats = (ROBOMIMIC_FORMAT, DATA_FORMAT)
    if OUR_KEY in config.train and data_format not in formats:
        raise ConfigError(
            f"train.data_format={data_format!r}: expected {' or '.join(map(repr, formats))} (HDF5 "
            "or RLDS; this host knows no other)."
        )
    if data_format == ROBOMIMIC_FORMAT:
        main_rank.on_main(hdf5_validate.check, config)
    checkpoint_path = config.experiment.get("ckpt_path", None)
    if checkpoint_path is not None and not resuming:
        main_rank.on_main(file_check.check, checkpoint_path, config.algo_name, trusts)


def _check_output(config: Any) -> None:
    """Raises ConfigError if no run directory can be created."""
    output, name = config.train.get("output_dir", None), config.experiment.name
    reason = None if output is None else paths.why_not_writable(os.path.join(output, name))
    if reason is not None:
        raise ConfigError(
            f"train.output_dir={str(output)[:200]!r}, experiment.name={str(name)[:200]!r}: "
            f"{reason}, so no run directory can be made there. Name a folder that you may write "
            "to; it is made if need be."
        )


def common_directory(paths: Any) -> Path:
    """The run directory: the deepest common folder of the paths of `get_exp_dir`."""
    return Path(os.path.commonpath([os.fspath(path) for path in paths if path is not None]))


def experiment_directory(config: Any) -> Path:
    """The folder of this experiment's run directories, perhaps relative to the host's package."""
    output = Path(os.path.expanduser(config.train.output_dir))
    if not output.is_absolute():
        import robomimic

        output = Path(robomimic.__path__[0]) / output
    return output / config.experiment.name
