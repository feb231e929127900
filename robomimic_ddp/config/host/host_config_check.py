"""Validates a host's config for mistakes that would stop or silently spoil training later.

Pure functions: every rank finds the same. Only values that no host can train with are refused.
"""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from robomimic_ddp.config import tree
from robomimic_ddp.config.tree import is_list, is_number, is_whole
from robomimic_ddp.errors import ConfigError

_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text in quotes",
    list: "a list",
}
_MANY = 10**9
_WHOLE = {
    "train.num_epochs": (1, _MANY),
    "train.seq_length": (1, _MANY),
    "train.frame_stack": (1, _MANY),
    "train.seed": (0, 2**32 - 1),
    "train.num_data_workers": (0, _MANY),
    "experiment.epoch_every_n_steps": (1, _MANY),
    "experiment.validation_epoch_every_n_steps": (1, _MANY),
    "experiment.save.every_n_epochs": (1, _MANY),
    "experiment.rollout.rate": (1, _MANY),
}
"""Dotted key -> smallest and largest integer. numpy takes no larger seed."""
_INTERVALS = {"experiment.save.every_n_epochs", "experiment.rollout.rate"}
"""Hosts divide by them, and accept 50.0 for 50."""
_MAY_BE_NULL = {
    "experiment.epoch_every_n_steps": "a whole pass",
    "experiment.validation_epoch_every_n_steps": "a whole pass",
    "experiment.save.every_n_epochs": "no save at fixed epochs",
}
_ALMOST = 0.85
"""Share of letters, after difflib, from which a key is taken for a mistyped one."""
_SEVERAL_KINDS = {"train.data", "train.dataset_names", "train.rlds_schema"}
"""One name, or a list of them."""


def require_known(
    config: Any,
    settings: Mapping,
    prefix: str = "",
    root: Any = None,
    new_keys: list[str] | None = None,
    of_file: Mapping | None = None,
) -> None:
    """Raises ConfigError for a key of `settings` that the host's `config` does not declare, with
    the closest one, and for a value of another type than the default's. A section in which the
    host allows new keys may have any, but not one that is spelt almost as a declared one, unless
    the config file (`of_file`; default: `settings`) has both. A list `new_keys` gets the dotted
    names of undeclared keys instead.
    """
    root = config if root is None else root
    of_file = settings if of_file is None else of_file
    for key, value in settings.items():
        if key not in config:
            takes_any = not getattr(config, "key_lockable", False)
            if takes_any and not _is_misspelt(key, config, of_file):
                continue
            if new_keys is not None:
                new_keys.append(f"{prefix}{key}")
                continue
            raise ConfigError(_unknown_message(root, config, prefix, key))
        is_section = hasattr(config[key], "key_lockable") and bool(config[key])
        if is_section and not isinstance(value, Mapping):
            raise ConfigError(
                f"{prefix}{key}={value!r}, but {prefix}{key} is a section with the keys "
                f"{', '.join(sorted(config[key]))}. Set one of them, such as "
                f"{prefix}{key}.{min(config[key])}=VALUE."
            )
        if is_section:
            inner = of_file.get(key)
            inner = inner if isinstance(inner, Mapping) else {}
            require_known(config[key], value, f"{prefix}{key}.", root, new_keys, inner)
        else:
            _require_kind(f"{prefix}{key}", value, config[key])


def _is_misspelt(key: Any, section: Any, of_file: Mapping) -> bool:
    """Return whether `key` is almost one that the host's `section` declares, and the config file
    has not both. Sections of lists or sections do not count: hosts allow new modalities, such as
    rgb2 in addition to rgb.
    """
    if all(isinstance(value, (Mapping, list, tuple)) for value in section.values()):
        return False
    close = difflib.get_close_matches(str(key), list(section), n=1, cutoff=_ALMOST)
    return any(name not in of_file or key not in of_file for name in close)


def _require_kind(dotted: str, value: Any, default: Any) -> None:
    """Refuses a number for text, text for a list, and so on."""
    kind = list if isinstance(default, (list, tuple)) else type(default)
    if value is None or kind not in _KINDS or dotted in _SEVERAL_KINDS:
        return
    fits = {
        bool: value in (0, 1),
        int: is_number(value),
        float: is_number(value),
        str: isinstance(value, str),
        list: isinstance(value, (list, tuple)),
    }[kind]
    if not fits and dotted not in _WHOLE and dotted != "train.batch_size":
        raise ConfigError(
            f"{dotted}={value!r}: expected {_KINDS[kind]}, such as this host's default {default!r}."
        )


def require_once(dotted: str, names: Sequence[Any]) -> None:
    """Raises ConfigError if `dotted`, a list of names, has one twice, or something else."""
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise ConfigError(f"{dotted} has {odd[0]!r}: expected names, each as text in quotes.")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{dotted} names {twice!r} twice: was another one meant? The policy would learn one "
            "action as two, or not know how an observation is encoded. Name it once."
        )


def _is_run_name(value: Any) -> bool:
    """Return whether runs with this name would be written below train.output_dir."""
    if not isinstance(value, str) or not value.strip():
        return False
    return not PurePath(value).is_absolute() and ".." not in PurePath(value).parts


_FITTING: dict[str, tuple[Callable[[Any], bool], str]] = {
    "experiment.name": (_is_run_name, "the name of a folder below train.output_dir"),
    "train.output_dir": (lambda value: bool(str(value or "").strip()), "a folder for the runs"),
}
"""Dotted key -> which values a host can train with, and what to say about others."""


def _closest(root: Any, config: Any, prefix: str, key: str) -> str:
    """Return the key that was meant, in this section or of this name elsewhere; "" if none."""
    same_name = [name for name, _ in tree.named(root) if name.rpartition(".")[2] == key]
    for cutoff in (0.6, 0.4):
        here = difflib.get_close_matches(key, list(config), n=1, cutoff=cutoff)
        for candidate in [*(prefix + name for name in here), *same_name]:
            return candidate
    return ""


def _unknown_message(root: Any, config: Any, prefix: str, key: str) -> str:
    closest = _closest(root, config, prefix, str(key))
    where = f"in {prefix[:-1]}" if prefix else "at the top"
    package = type(root).__module__.rpartition(".")[0]
    hint = (
        f"The closest valid key is {closest}. {package} declares all keys, and a run prints them "
        "before it trains."
        if closest
        else f"Valid {where}: {', '.join(sorted(config))}."
    )
    return (
        f"unknown key {prefix}{key}: this host's config for algo_name={root.algo_name} does not "
        f"declare it, so it would have no effect. {hint}"
    )


def program_in(config: Any) -> str | None:
    """Return a setting that would run as a program, or None: hosts evaluate the names of classes
    (`backbone_class`), so that each must be a name.
    """
    for dotted, value in tree.named(config):
        for name in tree.leaves(value) if dotted.endswith("_class") else ():
            if isinstance(name, str) and not name.isidentifier():
                return f"{dotted}={name[:80]!r}"
    return None


def require_possible(config: Any) -> None:
    """Raises ConfigError for values of a finished `config` that no host can train with, or that
    would run any program.
    """
    program = program_in(config)
    if program is not None:
        raise ConfigError(
            f"found {program}: expected the name of a class. Hosts evaluate this text, so it could "
            "run arbitrary code. Write the name alone, such as ResNet18Conv."
        )
    values = dict(tree.named(config))
    _require_values(values, config.algo_name)
    _require_observations(values)


def _require_values(values: Mapping[str, Any], algorithm: Any) -> None:
    for dotted, (least, most) in _WHOLE.items():
        value, switch = values.get(dotted), f"{dotted.rpartition('.')[0]}.enabled"
        if dotted not in values or (value is None and dotted in _MAY_BE_NULL):
            continue
        if switch == "experiment.save.enabled" and values.get(switch) is False:
            continue  # hosts then ignore the interval, but never rollout.rate
        if dotted in _INTERVALS and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not is_whole(value, least, most):
            null = f", or null for {_MAY_BE_NULL[dotted]}" if dotted in _MAY_BE_NULL else ""
            raise ConfigError(
                f"{dotted}={value!r}: expected a whole number of at least {least}, at most "
                f"{most}{null}."
            )
    for dotted, (fits, expected) in _FITTING.items():
        if dotted in values and not fits(values[dotted]):
            raise ConfigError(f"{dotted}={values[dotted]!r}: expected {expected}.")
    for dotted, value in values.items():
        rate = dotted.startswith("algo.") and dotted.endswith("learning_rate.initial")
        if rate and not (is_number(value) and 0 <= value <= sys.float_info.max):
            raise ConfigError(f"{dotted}={value!r}: expected a number of at least 0.")
    if is_list(values.get("train.action_keys")):
        require_once("train.action_keys", values["train.action_keys"])
    if algorithm == "diffusion_policy":
        _require_horizons(values)


def _require_horizons(values: Mapping[str, Any]) -> None:
    """Raise ConfigError where windows of frame_stack - 1 + seq_length steps are too short."""
    frames, steps = values.get("train.frame_stack"), values.get("train.seq_length")
    observed = values.get("algo.horizon.observation_horizon")
    predicted = values.get("algo.horizon.prediction_horizon")
    if isinstance(observed, int) and isinstance(frames, int) and frames < observed:
        raise ConfigError(
            f"train.frame_stack={frames}, but the policy looks at "
            f"algo.horizon.observation_horizon={observed} frames. Set train.frame_stack to "
            f"{observed} or more."
        )
    if not all(isinstance(number, int) for number in (predicted, steps, frames)):
        return
    if frames - 1 + steps < predicted:
        raise ConfigError(
            f"train.seq_length={steps} and train.frame_stack={frames} give windows of "
            f"{frames - 1 + steps} actions, but the policy predicts "
            f"algo.horizon.prediction_horizon={predicted}. Set train.seq_length to "
            f"{predicted - frames + 1} or more."
        )


def _require_observations(values: Mapping[str, Any]) -> None:
    prefix = "observation.modalities.obs."
    kinds = [value for dotted, value in values.items() if dotted.startswith(prefix)]
    require_once(prefix[:-1], [key for keys in kinds if is_list(keys) for key in keys])
    if kinds and not any(kinds):
        raise ConfigError(
            "observation.modalities.obs names no observation, so the policy would see nothing. "
            "List the dataset's keys under low_dim or rgb."
        )
