"""Validate the RLDS keys of a config, before a file is opened; `rlds_keys` explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robomimic_ddp.config.host import host_config_check
from robomimic_ddp.config.host.rlds_keys import DEFAULTS
from robomimic_ddp.config.tree import are_weights, at, is_finite, is_list, is_number, is_whole
from robomimic_ddp.data.rlds.index.source import find_dataset
from robomimic_ddp.data.rlds.schema.spec import load_schema
from robomimic_ddp.errors import ConfigError

_WHOLE = ("train.shuffle_buffer_size", "train.subsample_length", "train.num_parallel_calls")
"""Dotted keys; null is allowed where it is the default."""
_MOST = 10**12


def setting(config: Any, dotted: str) -> Any:
    """Return the value of an RLDS key, or its default if the host's config does not declare it."""
    section, name = dotted.split(".")
    return config[section][name] if name in config[section] else DEFAULTS[dotted]


def dataset_names(config: Any) -> list[str]:
    """Return `train.dataset_names` as a list. Raises ConfigError."""
    names = setting(config, "train.dataset_names")
    names = [names] if isinstance(names, str) else names
    if not is_list(names) or not names or not all(isinstance(n, str) and n for n in names):
        raise ConfigError(
            f"train.dataset_names={_plain(names)!r}: expected the names of the datasets in "
            'train.data_path, such as ["droid"].'
        )
    return list(names)


def check(config: Any) -> None:
    """Raise ConfigError for the first RLDS key of `config` with an impossible value."""
    for dotted in _WHOLE:
        value = setting(config, dotted)
        if value is None and DEFAULTS[dotted] is None:
            continue
        if not is_whole(value, 1, _MOST):
            null = ", or null" if DEFAULTS[dotted] is None else ""
            raise ConfigError(
                f"{dotted}={value!r}: expected a whole number of at least 1, at most {_MOST}{null}."
            )
    for dotted in ("train.data_path", "train.dataset_version", "train.data_cache_dir"):
        value = setting(config, dotted)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{dotted}={value!r}: expected text in quotes.")
    for name in schema_names(config):
        load_schema(name)
    _check_weights(config)
    _check_fraction(config)
    _check_actions(config)
    _check_crops(config)


def dataset_configs(config: Any) -> list[dict[str, Any]]:
    """Return the entries of `config.train.data`, one per dataset with a weight above 0: path, key
    (which hosts call its environment by), weight, schema, image_dim. Reads folder names only.
    Raises DataError, ConfigError.
    """
    check(config)
    root, version = setting(config, "train.data_path"), setting(config, "train.dataset_version")
    size = list(image_dim(config))
    names, schemas = dataset_names(config), schema_names(config)
    entries = zip(names, setting(config, "train.sample_weights"), schemas)
    return [
        {
            "path": str(path),
            "key": path.parent.name,
            "weight": float(weight),
            "schema": schema,
            "image_dim": size,
        }
        for name, weight, schema in entries
        if weight > 0
        for path in [find_dataset(root or "", name, version)]
    ]


def schema_names(config: Any) -> list[str]:
    """Return `train.rlds_schema` for each of `dataset_names`. Raises ConfigError."""
    value, names = setting(config, "train.rlds_schema"), dataset_names(config)
    schemas = list(value) if is_list(value) else [value] * len(names)
    if len(schemas) != len(names) or not all(isinstance(s, str) and s for s in schemas):
        raise ConfigError(
            f"train.rlds_schema={_plain(value)!r}: expected a schema's name or path, or a list of "
            f"one for each of the {len(names)} dataset(s) of train.dataset_names."
        )
    return schemas


def image_dim(config: Any) -> tuple[int, int]:
    """Return `observation.image_dim` as (height, width). Raises ConfigError."""
    size = setting(config, "observation.image_dim")
    if not is_list(size) or len(size) != 2 or not all(is_whole(number, 1) for number in size):
        raise ConfigError(
            f"observation.image_dim={_plain(size)!r}: expected [height, width] in pixels."
        )
    height, width = size
    return int(height), int(width)


def _check_crops(config: Any) -> None:
    """The host only asserts it, once the ranks have started."""
    size, place = image_dim(config), "observation.encoder.rgb.obs_randomizer"
    crop = [at(config, f"{place}_kwargs.crop_{side}") for side in ("height", "width")]
    if at(config, f"{place}_class") != "CropRandomizer" or not all(map(is_number, crop)):
        return
    if any(part >= whole for part, whole in zip(crop, size)):
        raise ConfigError(
            f"{place}_kwargs: found crops of {crop[0]} x {crop[1]} from images of "
            f"{size[0]} x {size[1]} (observation.image_dim); expected smaller ones. Set "
            "crop_height and crop_width there, such as to nine tenths of the image."
        )


def _check_weights(config: Any) -> None:
    names, weights = dataset_names(config), setting(config, "train.sample_weights")
    if not is_list(weights) or len(weights) != len(names) or not are_weights(weights):
        raise ConfigError(
            f"train.sample_weights={_plain(weights)!r}: expected one number of at least 0 for each "
            f"of the {len(names)} dataset(s) of train.dataset_names, not all 0, and a finite sum."
        )


def _check_fraction(config: Any) -> None:
    fraction = setting(config, "train.validation_fraction")
    if config.experiment.validate and not (is_finite(fraction) and 0 < fraction < 1):
        raise ConfigError(
            f"train.validation_fraction={fraction!r}: expected a share between 0 and 1. For no "
            "validation, set experiment.validate=false."
        )


def _check_actions(config: Any) -> None:
    keys = config.train.action_keys
    if not is_list(keys) or not keys:
        raise ConfigError(f"train.action_keys={_plain(keys)!r}: expected at least one action key.")
    host_config_check.require_once("train.action_keys", keys)
    for key in keys:
        normalization_method(config.train.action_config, key)


def normalization_method(action_config: Mapping[str, Any], key: str) -> str | None:
    """Return the normalisation of action `key` in train.action_config. Raises ConfigError."""
    entry = action_config.get(key, None)
    method = entry.get("normalization", None) if isinstance(entry, Mapping) else "none at all"
    if method not in (None, "min_max", "gaussian"):
        state = f"[{key!r}] is {entry}" if entry is not None else f" has no {key!r}"
        raise ConfigError(
            f"train.action_config{state} (its entries: {', '.join(action_config)}): every key of "
            'train.action_keys needs an entry whose "normalization" is null, "min_max" or '
            '"gaussian".'
        )
    return method


def _plain(value: Any) -> Any:
    return list(value) if is_list(value) else value
