"""Settings of the form key=value on the command line: ours, and those of hosts' own entries."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import BaseLoader, YAMLError, load

from robomimic_ddp.config import tree
from robomimic_ddp.errors import ConfigError

FILE = "load_from="
OPTIONS = "ddp."
"""Prefix of our options."""
_HOST_KEY = re.compile(r"\+?(train|experiment|algo|observation)\.[^=]+=")
_READS_WORDS = re.compile(
    r"parse_(known|intermixed)_args|parse_args\([^)]|add_subparsers|nargs|argv|hydra|OmegaConf"
    r"|add_argument\(\s*([\"'][^-\"']|[^\s\"'])"
)
"""Source text of a script that may read words besides flags."""


def _meant(argument: str, arguments: Sequence[str]) -> str:
    """Return what to write for a flag that other entries have, or for a config alone; else ""."""
    flag, _, value = argument.partition("=")
    if flag == "--config":
        after = [*arguments[arguments.index(argument) + 1 :], "CONFIG.json"]
        meant = f"{FILE}{value or after[0]}"
    elif argument in ("--resume", "--debug"):
        meant = f"{argument[2:]}=true"
    elif argument.endswith(".json") and not argument.startswith("-"):
        meant = f"{FILE}{argument}"
    else:
        return ""
    return f" Write {meant}."


def parse_dotlist(arguments: Sequence[str], usage: str = "") -> dict:
    """`["a.b=1", "c=[x,y]"]` as a nested dictionary, values as YAML; but `load_from` names a file,
    whatever characters its path has. Raises ConfigError on anything else; `usage` ends its message.
    """
    for argument in arguments:
        if "=" not in argument.lstrip("-") or argument.startswith("-"):
            text = f"argument {argument!r} is not key=value.{_meant(argument, arguments)}\n{usage}"
            raise ConfigError(text.rstrip())
    paths = [word for word in arguments if word.startswith(FILE)]
    settings = [word for word in arguments if not word.startswith(FILE)]
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist(settings))
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        why = " ".join(str(error).split())  # YAML errors have several lines
        text = f"the command line could not be read as key=value settings: {why}\n{usage}"
        raise ConfigError(text.rstrip()) from error
    if paths:
        path = paths[-1][len(FILE) :]
        values[FILE[:-1]] = None if path in ("", "null") else path
    return values


def restore_text(values: dict, words: Sequence[str], is_text: Callable[[str, Any], bool]) -> bool:
    """Put the text that was typed into `values` (of `parse_dotlist(words)`, in place) where YAML
    has read a number or a switch and `is_text(key, value)`: names may be dates. Returns whether
    anything was replaced.
    """
    replaced = False
    texts = {key: text for key, _, text in (word.partition("=") for word in words)}
    for key, text in texts.items():
        prefix, _, name = key.rpartition(".")
        section = tree.at(values, prefix) if prefix else values
        value = section.get(name) if isinstance(section, dict) else None
        if isinstance(value, (bool, int, float)) and is_text(key, value):
            section[name] = load(text, BaseLoader)  # without quotes and comments
            replaced = True
    return replaced


_removed: ContextVar[tuple[str, ...]] = ContextVar("robomimic_ddp_words", default=())


def take_options() -> None:
    """Removes our options from sys.argv, where the host's parser would reject them."""
    words = tuple(word for word in sys.argv[1:] if _is_option(word))
    if words:
        _removed.set((*_removed.get(), *words))
        sys.argv[1:] = [word for word in sys.argv[1:] if word not in words]


def keys_beside_config() -> list[str]:
    """Words of sys.argv that set keys of a host's config, and are not the value of a flag."""
    before = ["", *sys.argv[1:]]
    return [
        word
        for word, previous in zip(sys.argv[1:], before)
        if _HOST_KEY.match(word) and not previous.startswith("-")
    ]


def require_accepted(words: Sequence[str], source: str) -> None:
    """Raises ConfigError if a script of this text, which reads --config by argparse, accepts none
    of `words`.
    """
    if ".parse_args()" in source and "--config" in source and not _READS_WORDS.search(source):
        raise ConfigError(
            f"found {' '.join(words)}, but this script reads the host's keys only from --config; "
            "expected its own flags, and ddp.NAME=VALUE. Write the key into the config, or start "
            "robomimic.scripts.train_rlds load_from=CONFIG.json KEY=VALUE ..., which takes keys "
            "(for HDF5 data, too)."
        )


def overrides(words: Sequence[str]) -> list[str]:
    """Return a host's list of overrides without our options, which Hydra would reject."""
    return [word for word in words if not _is_option(word)]


def options() -> dict[str, Any]:
    """Our options on this process's command line: `ddp.lr_scaling=sqrt` is {"lr_scaling": "sqrt"}.

    Raises ConfigError for text that is not an option.
    """
    words = [word.lstrip("+") for word in (*_removed.get(), *sys.argv[1:]) if _is_option(word)]
    return parse_dotlist(words).get(OPTIONS.rstrip("."), {}) if words else {}


def keys() -> tuple[str, ...]:
    """Keys set on this process's command line: ("train.batch_size", ...)."""
    return tuple(word.partition("=")[0] for word in _settings())


def load_from(composed: Any, loaded: Any) -> Any:
    """`loaded` (a file's config) over the host's defaults, and the command line over both.

    composed: the host's defaults and the command line, composed; both are OmegaConf configs. Hosts
    let the file replace all of it, and silently drop key=value. A section that a Hydra group has
    chosen (train=big) is that of `composed`.
    """
    defaults = OmegaConf.create(OmegaConf.to_container(composed))  # Hydra's config refuses new keys
    chosen, settings = {}, []
    for word in _settings():
        key, _, value = word.partition("=")
        if OmegaConf.is_dict(defaults.get(key)) and not value.startswith("{"):
            chosen[key] = defaults[key]
        else:
            settings.append(word)
    return OmegaConf.merge(defaults, loaded, chosen, OmegaConf.create(parse_dotlist(settings)))


def _settings() -> list[str]:
    """Return the host's own key=value words; "+key=value" is Hydra's way to add a key, and
    "a/b=value" to choose a file for one.
    """
    words = [
        word.lstrip("+") for word in overrides(sys.argv[1:]) if not word.startswith(("-", "~"))
    ]
    apart = (FILE, "hydra.", "hydra/")
    return [
        word
        for word in words
        if "=" in word and not word.startswith(apart) and "/" not in word.partition("=")[0]
    ]


def _is_option(word: str) -> bool:
    return word.lstrip("+").startswith(OPTIONS) and "=" in word
