"""The config of a job as the host's code and its ranks have it: made without torch, from a file and
a dot-list.

Hosts lock the keys of their config. Ours are declared only if a config uses them, so that the
unpatched host can read the config.json of a run on HDF5.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from robomimic_ddp.config import launch_env, options, paths, tree
from robomimic_ddp.config.host import dotlist, host_config_check, json_config
from robomimic_ddp.config.host.rlds_keys import DATA_FORMAT, DEFAULTS
from robomimic_ddp.errors import ConfigError
from robomimic_ddp.terminal import print_clean

USAGE = (
    "usage: python -m robomimic.scripts.train_rlds load_from=CONFIG.json [key=value ...] "
    "[debug=true] [resume=true|auto] [ddp.NAME=value]"
)
_FLAGS = ("load_from", "debug", "resume")
_MISPLACED = "train.optim_params"
ROBOMIMIC_FORMAT = "robomimic"
"""The value of train.data_format, where hosts have it, for HDF5."""
OUR_KEY = "data_cache_dir"
"""A key that no host has; it shows that ours are declared."""

_NOTES = "__robomimic_ddp_notes"
_LEARNING_RATE = "learning_rate.initial"


_latest_section: ContextVar[Mapping[str, Any] | None] = ContextVar("robomimic_ddp_section")
"""The section "ddp" of the file that was read last."""


@dataclass(frozen=True)
class Notes:
    """Our options from the config file's `ddp` section and from the command line, and the keys of
    the host's config that are set there.
    """

    file_options: Mapping[str, Any] = field(default_factory=dict)
    command_line_options: Mapping[str, Any] = field(default_factory=dict)
    command_line_keys: tuple = ()


def attach_notes(config: Any, notes: Notes) -> None:
    """Attach `notes` to the host's config, outside its dictionary, which files contain."""
    object.__setattr__(config, _NOTES, notes)


def notes_of(config: Any) -> Notes:
    """Return the notes of `attach_notes`. A config without them has those of this process's command
    line and of the latest file: hosts copy a config that we have read, and a copy has its items
    only.
    """
    notes = getattr(config, "__dict__", {}).get(_NOTES)
    if notes is None:
        notes = Notes(_latest_section.get(None) or {}, dotlist.options(), dotlist.keys())
    return notes


def options_of(
    config: Any, environment: Mapping[str, str] | None = None
) -> options.ResolvedOptions:
    """Return the options of a finished config and of the `environment`. Raises OptionError."""
    notes = notes_of(config)
    return options.resolve(notes.command_line_options, environment, notes.file_options)


def sets_learning_rate(config: Any) -> bool:
    """Return whether the command line sets a learning rate of the host's config."""
    return any(key.endswith(_LEARNING_RATE) for key in notes_of(config).command_line_keys)


def build_config(arguments: Sequence[str]) -> Any:
    """Return the host's locked config for a dot-list."""
    from robomimic.config import config_factory

    overrides = dotlist.parse_dotlist(arguments, USAGE)
    flags = {name: overrides.pop(name, None) for name in _FLAGS}
    for name in _FLAGS[1:]:
        others = ("auto",) if name == "resume" else ()
        if flags[name] not in (None, True, False, *others):
            expected = " or ".join(["true or false", *others])
            raise ConfigError(f"{name}={flags[name]!r}: expected {expected}.")
    settings = {}
    if flags["load_from"] is not None:
        settings = json_config.read_json(flags["load_from"], "load_from=")
        json_config.refuse_resolvers(settings, flags["load_from"])
    for values in (settings, overrides):
        _move_misplaced(values)
    command_line_options = overrides.pop("ddp", None) or {}
    if not isinstance(command_line_options, Mapping):
        raise ConfigError(
            f"ddp={command_line_options!r}, but ddp is a section of options. Set one of them, such "
            "as ddp.lr_scaling=linear."
        )
    if flags["resume"]:
        command_line_options.setdefault("resume", flags["resume"])
    keys = tuple(key for key, _ in tree.named(overrides))
    of_file, settings = settings, merged(settings, overrides)
    algo_name = settings.get("algo_name")
    if algo_name is None:
        raise ConfigError(
            "found no algo_name; expected one from load_from=CONFIG.json or "
            f"algo_name=NAME.\n{USAGE}"
        )
    json_config.require_registered(algo_name, config_factory)
    config = config_factory(algo_name)
    _take_options(config, settings)
    if dotlist.restore_text(overrides, arguments, partial(_is_text, config, of_file)):
        settings = merged(of_file, overrides)
        settings.pop("ddp", None)
    host_config_check.require_known(config, settings, of_file=of_file)
    attach_notes(config, Notes(notes_of(config).file_options, dict(command_line_options), keys))
    with config.values_unlocked():
        config.update(settings)
    if flags["debug"]:
        _shorten(config)
    config.lock()
    return config


def _is_text(config: Any, of_file: Mapping, key: str, value: Any) -> bool:
    """Return whether the host's default at `key` is text, or is null or missing and a number would
    replace a text of the file.
    """
    default = tree.at(config, key)
    if default is None:
        return tree.is_number(value) and isinstance(tree.at(of_file, key), str)
    return isinstance(default, str)


def config_of_job(
    file: Any, words: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[Any, options.ResolvedOptions]:
    """Return the host's config of `--config FILE` with the settings `words`, and the options, as a
    rank of the training has them. Raises ConfigError, OptionError.
    """
    json_config.read_json(file, "--config ")
    try:
        config = build_config([f"load_from={paths.expanded(file)}", *words])
    except ImportError as error:
        raise ConfigError(
            f"--config {file}: its keys cannot be compared with the host's config: {error}. Use "
            "the Python that trains."
        ) from error
    return config, checked_options(config, environment)


def checked_options(
    config: Any, environment: Mapping[str, str] | None = None
) -> options.ResolvedOptions:
    """Return the options of a finished `config`. Raises ConfigError and OptionError for what no
    rank would train with.
    """
    host_config_check.require_possible(config)
    return options_of(config, environment)


def merged(settings: Mapping, overrides: Mapping) -> dict:
    """`overrides` over `settings`, references such as ${train.seed} filled in. Raises ConfigError
    for a reference to a key that neither has, and for an override inside a list.
    """
    try:
        return OmegaConf.to_container(OmegaConf.merge(settings, overrides), resolve=True)
    except OmegaConfBaseException as error:
        for conflict in _list_conflicts(settings, overrides):
            raise ConfigError(conflict) from error
        hint = ""
        if isinstance(error, (InterpolationResolutionError, GrammarParseError)):
            values = [item for layer in (overrides, settings) for item in tree.named(layer)]
            keys = [key for key, value in values if isinstance(value, str) and "${" in value]
            hint = (
                f"\nText with a dollar sign and a brace (in {', '.join(keys[:3]) or 'a value'}) is "
                "a reference to another key; write \\${ for the characters themselves."
            )
        raise ConfigError(f"the settings could not be put together: {error}{hint}") from error


def _list_conflicts(settings: Mapping, overrides: Mapping) -> Iterator[str]:
    """Yield a message for each key of `overrides` inside a list of `settings`, such as
    train.data.0.path, and for each list in place of a section.
    """
    for key, value in tree.named(overrides):
        if tree.is_list(value) and isinstance(tree.at(settings, key), Mapping):
            yield (
                f"found {key}={value!r:.100}, but {key} is a section in the config file. Set one "
                f"of its keys, as {key}.NAME=VALUE."
            )
        for prefix in accumulate(key.split("."), "{}.{}".format):
            if prefix != key and tree.is_list(tree.at(settings, prefix)):
                yield (
                    f"found {key}, but {prefix} is a list in the config file, and what is in a "
                    f"list cannot be set by its number. Write the complete list, as "
                    f"'{prefix}=[...]', or change the file."
                )


def _move_misplaced(tree: dict) -> None:
    """Accepts train.optim_params, which a widely read guide uses, as algo.optim_params."""
    section = tree.get("train")
    if isinstance(section, dict) and "optim_params" in section:
        moved = {"algo": {"optim_params": section.pop("optim_params")}}
        merged = OmegaConf.to_container(OmegaConf.merge(tree, moved))
        tree.update(merged)
        if launch_env.read_launch_env().rank == 0:
            print_clean(
                f"warning: {_MISPLACED}.* is read as algo.optim_params.*, where hosts keep it",
                file=sys.stderr,
            )


def _shorten(config: Any) -> None:
    """debug=true: the host's --debug settings, for a short run."""
    with config.values_unlocked():
        config.experiment.epoch_every_n_steps = 3
        config.experiment.validation_epoch_every_n_steps = 3
        config.train.num_epochs = 2
        config.experiment.rollout.rate = 1
        config.experiment.rollout.n = 2
        config.experiment.rollout.horizon = 10
        config.train.output_dir = str(Path(tempfile.gettempdir(), "tmp_trained_models"))


def prepare_config(config: Any, external: MutableMapping, new_keys: bool = False) -> Any:
    """Removes the section "ddp" from `external` (in place) and declares the RLDS keys that it uses.

    Returns the host's `config`, with our options attached: those of the section, and
    `ddp.NAME=value` of the command line. Raises ConfigError for a key that the host does not
    declare, and for a value of another type than its default's. `new_keys`: the host's script
    unlocks the config's keys before it reads `external`, so that keys are added; the main rank
    prints their names.
    """
    _take_options(config, external)
    added: list[str] | None = [] if new_keys else None
    host_config_check.require_known(config, external, new_keys=added)
    if added and launch_env.read_launch_env().rank == 0:
        print_clean(
            f"note: the config file adds {', '.join(added)}, which this host's config does not "
            "declare. A misspelt key has no effect.",
            file=sys.stderr,
        )
    return config


def _take_options(config: Any, external: MutableMapping) -> None:
    """Move the section "ddp" of `external` to the notes of `config`, and declare the RLDS keys that
    `external` uses. Raises ConfigError.
    """
    section = external.pop("ddp", None) or {}
    if not isinstance(section, Mapping):
        raise ConfigError(
            f'"ddp" is {section!r}; expected a section of options, such as '
            '{"lr_scaling": "linear"}.'
        )
    attach_notes(config, replace(notes_of(config), file_options=dict(section)))
    _latest_section.set(section)
    train = external.get("train")
    if isinstance(train, Mapping) and train.get("data_format") is not None:
        declare_rlds_keys(config)


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
    """Return whether the run reads RLDS data through our loader."""
    return format_is_rlds(config) and not reads_rlds_itself(config)


def reads_rlds_itself(config: Any) -> bool:
    """Return whether the host has an RLDS pipeline: it declares the format, not our keys."""
    return "data_format" in config.train and OUR_KEY not in config.train


def trains_by_own_pipeline(config: Any) -> bool:
    """Return whether the run reads RLDS data through the host's pipeline."""
    return format_is_rlds(config) and reads_rlds_itself(config)


def format_is_rlds(config: Any) -> bool:
    """Return whether the run reads RLDS data, by our loader or the host's."""
    return config.train.get("data_format") == DATA_FORMAT
