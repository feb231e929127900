"""Reads a host's JSON config; one error says what is wrong with the file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import paths, tree
from robomimic_ddp.errors import ConfigError, did_you_mean

_REGISTRY = "REGISTERED_CONFIGS"
"""robomimic's mapping from names of algorithms to classes, next to its `config_factory`."""

_OF_REFERENCE = re.compile(r"\$\{|[:}]")


def read_json(path: Any, spelled: str) -> dict:
    """Return the settings in a host's JSON config.

    Raises ConfigError, which names the file as `spelled`, if it is missing or no regular file,
    contains no JSON object, or if an object has a key twice.
    """
    file = paths.expanded(path)
    try:
        settings = files.read_json(file)
    except FileNotFoundError:
        raise _absent(path, spelled) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{spelled}{path} could not be read as JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{spelled}{path} contains a {type(settings).__name__}; expected an object with "
            "algo_name."
        )
    return settings


def _absent(path: Any, spelled: str) -> ConfigError:
    looked_for = paths.expanded(path).absolute()
    return ConfigError(f"{spelled}{path}: no such file (looked for {looked_for}).")


def is_left_to_host(path: Any) -> bool:
    """Return whether --config names something else than a .json file, such as one in YAML, which
    the host reads in its way. Raises ConfigError if it names a file that does not exist; a name
    without a suffix may not be that of a file.
    """
    file = paths.expanded(path)
    exists = os.path.exists(file)
    is_special = exists and not os.path.isfile(file)
    if file.suffix.lower() == ".json" or is_special:
        return False  # a pipe or a folder is refused where it would be read
    if file.suffix and not exists:
        raise _absent(path, "--config ")
    return True


def read_plain(path: Any) -> dict:
    """Return the settings in a file of JSON or plain YAML, whatever its name is; {} for others."""
    for read in (files.read_json, files.read_yaml):
        try:
            settings = read(paths.expanded(path))
        except (OSError, ValueError):
            continue
        if isinstance(settings, dict):
            return settings
    return {}


def refuse_resolvers(settings: Mapping, path: Any) -> None:
    """Raise ConfigError for text such as ${oc.env:NAME}, which would copy the environment of who
    trains into the run's config.json and its logs.
    """
    for key, value in tree.named(settings):
        for text in filter(_is_computed, map(str, tree.leaves(value))):
            raise ConfigError(
                f"load_from={path}: {key} is {text[:100]!r}, which is computed from this machine. "
                "Write the value itself; on the command line ${oc.env:NAME} is read."
            )


def _is_computed(text: str) -> bool:
    """Return whether a reference in `text` has a colon, which ends the name of a function. A
    reference may be a part of that name: ${${train.x}:NAME}.
    """
    depth = 0
    for word in _OF_REFERENCE.findall(text):
        if word == ":" and depth:
            return True
        depth = depth + 1 if word == "${" else max(0, depth - (word == "}"))
    return False


def require_algorithm(path: Any) -> dict:
    """Return the settings in the file of --config. Raises ConfigError, also if no algorithm is
    named in it.
    """
    settings = read_json(path, "--config ")
    name = settings.get("algo_name")
    if not isinstance(name, str):
        value = f"algo_name={name!r:.80}" if "algo_name" in settings else "no algo_name"
        raise ConfigError(
            f"--config {path}: found {value}; expected the name of one of this host's "
            'algorithms, such as "algo_name": "diffusion_policy".'
        )
    return settings


def require_config(arguments: Any, main: Callable) -> None:
    """Check the `config`, if it is JSON, or `algo` of the parsed arguments of a host's `main`.
    Raises ConfigError.
    """
    path, factory = (
        getattr(arguments, "config", None),
        getattr(main, "__globals__", {}).get("config_factory"),
    )
    if isinstance(path, str):
        if is_left_to_host(path):
            return
        require_registered(require_algorithm(path)["algo_name"], factory, f"--config {path}: ")
    elif isinstance(getattr(arguments, "algo", None), str):
        require_registered(arguments.algo, factory, "--algo: ")


def require_registered(name: Any, config_factory: Any, spelled: str = "") -> None:
    """Raise ConfigError if a host's `config_factory` has no algorithm of this `name`, found as
    `spelled`. Passes where the host keeps its algorithms in another way than robomimic.
    """
    known = getattr(config_factory, "__globals__", {}).get(_REGISTRY)
    if isinstance(known, Mapping) and not (isinstance(name, str) and name in known):
        raise ConfigError(
            f"{spelled}algo_name={name!r:.80} is none of this host's algorithms: expected one of "
            f"{', '.join(map(str, known))}.{did_you_mean(name, map(str, known))}"
        )
