"""Reads a host's JSON config, and says in one error what is wrong with the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from robomimic_ddp.errors import ConfigError


def read_json(path: Any, spelled: str) -> dict:
    """The settings in a host's JSON config. Raises ConfigError, naming it as `spelled`, for a file
    that is not there or holds no JSON object, and for a key that stands in an object twice.
    """
    file = Path(str(path)).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
        settings = json.loads(text, object_pairs_hook=_without_duplicates)
    except FileNotFoundError:
        raise ConfigError(
            f"{spelled}{path}: no such file (looked for {file.absolute()})."
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{spelled}{path} could not be read as JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{spelled}{path} holds a {type(settings).__name__}; expected an object with algo_name."
        )
    return settings


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"an object has the key {key!r} twice, and one would be lost")
        found[key] = value
    return found


def require_config_file(path: Any) -> None:
    """Raises ConfigError for the argument of a host's --config that it could not begin with."""
    if isinstance(path, str) and "algo_name" not in read_json(path, "--config "):
        raise ConfigError(
            f"--config {path}: found no algo_name; expected the name of one of this host's "
            'algorithms, such as "algo_name": "diffusion_policy".'
        )
