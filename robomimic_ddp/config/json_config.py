"""Reads a host's JSON config; one error says what is wrong with the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import paths, tree
from robomimic_ddp.errors import ConfigError

_RESOLVER = re.compile(r"\$\{[^{}]*:")


def read_json(path: Any, spelled: str) -> dict:
    """Return the settings in a host's JSON config.

    Raises ConfigError, which names the file as `spelled`, if it is missing or no regular file,
    contains no JSON object, or if an object has a key twice.
    """
    file = paths.expanded(path)
    try:
        settings = files.read_json(file)
    except FileNotFoundError:
        raise ConfigError(
            f"{spelled}{path}: no such file (looked for {file.absolute()})."
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{spelled}{path} could not be read as JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{spelled}{path} contains a {type(settings).__name__}; expected an object with "
            "algo_name."
        )
    return settings


def refuse_resolvers(settings: Mapping, path: Any) -> None:
    """Raise ConfigError for text such as ${oc.env:NAME}, which would copy the environment of who
    trains into the run's config.json and its logs.
    """
    for key, value in tree.named(settings):
        for text in filter(_RESOLVER.search, map(str, tree.leaves(value))):
            raise ConfigError(
                f"load_from={path}: {key} is {text[:100]!r}, which is computed from this machine. "
                "Write the value itself; on the command line ${oc.env:NAME} is read."
            )


def require_algorithm(path: Any) -> dict:
    """Return the settings in the file of --config. Raises ConfigError, also if no algorithm is in
    it.
    """
    settings = read_json(path, "--config ")
    if "algo_name" not in settings:
        raise ConfigError(
            f"--config {path}: found no algo_name; expected the name of one of this host's "
            'algorithms, such as "algo_name": "diffusion_policy".'
        )
    return settings


def require_config(arguments: Any) -> None:
    """Check the `config` of the parsed arguments of a host's main. Raises ConfigError."""
    path = getattr(arguments, "config", None)
    if isinstance(path, str):
        require_algorithm(path)
