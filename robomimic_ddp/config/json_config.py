"""Reads a host's JSON config; one error says what is wrong with the file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from robomimic_ddp.config import env, paths
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.errors import ConfigError


def read_json(path: Any, spelled: str) -> dict:
    """The settings in a host's JSON config. Raises ConfigError, which names it as `spelled`, if the
    file is missing or contains no JSON object, or if an object has a key twice.
    """
    file = paths.expanded(path)
    ranks = env.read_launch_env().world_size if paths.is_pipe(file) else 1
    if ranks > 1:
        raise ConfigError(
            f"{spelled}{path} is a pipe, which one process can read, once, and there are {ranks} "
            "ranks. Write the config into a file."
        )
    try:
        settings = json.loads(paths.read_text(file), object_pairs_hook=_without_duplicates)
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


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"an object has the key {key!r} twice, and one would be lost")
        found[key] = value
    return found


@contextmanager
def checked_config(arguments: Any) -> Iterator[None]:
    """For a host's main(arguments): validates its `config`, and for the block replaces a pipe,
    which can be read only once, by a temporary file. Raises ConfigError.
    """
    path = getattr(arguments, "config", None)
    if not isinstance(path, str):
        yield
        return
    once = paths.is_pipe(path)
    settings = read_json(path, "--config ")
    if "algo_name" not in settings:
        raise ConfigError(
            f"--config {path}: found no algo_name; expected the name of one of this host's "
            'algorithms, such as "algo_name": "diffusion_policy".'
        )
    if not once:
        yield
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as kept:
        json.dump(settings, kept)
        kept.flush()
        with swapped(arguments, "config", kept.name):
            yield
