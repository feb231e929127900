"""What entries of hosts take from Hydra: `compose` and what goes with it, with or without Hydra.

Where Hydra is installed its own objects are given out. Elsewhere a YAML is composed by OmegaConf,
which is here anyway (see `composition`); what needs more of Hydra is an error that says so.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from robomimic_ddp.composition import Files, Word
from robomimic_ddp.errors import ConfigError

OFFERED = ("GlobalHydra", "compose", "initialize", "initialize_config_dir")
"""The names that a patched entry imports from `robomimic_ddp.api` in place of Hydra's modules."""

_folders: list[Path] = []
"""Where the configs are; the last one counts. Of this process, as Hydra's own is."""


def offered(name: str) -> Any:
    """Hydra's own object of this name where Hydra is installed, else the one of this module."""
    try:
        import hydra
        from hydra.core.global_hydra import GlobalHydra as of_hydra
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "hydra":
            raise
        return globals()[name]
    return of_hydra if name == "GlobalHydra" else getattr(hydra, name)


class initialize_config_dir:  # noqa: N801 (Hydra's name)
    """Sets the folder of the configs, from now on or for a `with` block; `more` is Hydra's."""

    def __init__(self, config_dir: Any, *more: Any, **named: Any) -> None:
        folder = Path(os.path.abspath(os.fspath(config_dir)))
        if not folder.is_dir():
            raise ConfigError(
                f"there is no folder {folder}; expected the one with the configs to compose."
            )
        _folders.append(folder)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *failure: Any) -> None:
        if _folders:
            _folders.pop()


def initialize(config_path: str | None = None, *more: Any, **named: Any) -> initialize_config_dir:
    """As `initialize_config_dir`, relative to the file that calls it."""
    caller = Path(inspect.stack()[1].filename)
    return initialize_config_dir(caller.parent / (config_path or "."))


class GlobalHydra:
    """Hydra's state of a process: whether a folder is set, and to forget it."""

    @classmethod
    def instance(cls) -> GlobalHydra:
        return cls()

    def is_initialized(self) -> bool:
        return bool(_folders)

    def clear(self) -> None:
        _folders.clear()


def compose(
    config_name: str | None = None, overrides: Sequence[str] | None = None, *more: Any, **named: Any
) -> DictConfig:
    """The config `config_name` of the folder that was set, with what its defaults list names, and
    `overrides` over all. No keys can be added to it, as to Hydra's.

    Raises ConfigError, naming the file or word, for what is missing or needs Hydra itself.
    """
    if not _folders or config_name is None:
        lacking = "a config_name" if _folders else "initialize_config_dir(...) before it"
        raise ConfigError(f"compose() found nothing to compose: it expects {lacking}.")
    words = [word for word in map(Word, overrides or ()) if not word.is_of_hydra]
    files = Files(_folders[-1], words)
    try:
        config = OmegaConf.merge({}, *files.parts(config_name))
        config.pop("hydra", None)
        OmegaConf.set_struct(config, True)
        for word in words:
            if word not in files.used:
                word.apply(config)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{config_name} could not be composed: {error}") from error
    return config
