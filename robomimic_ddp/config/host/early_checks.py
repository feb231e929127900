"""What every rank would refuse in its command line and config, found before torch, TensorFlow and
the host's code are imported, which takes many seconds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from robomimic_ddp.config import early_failure, env, launch_env, options
from robomimic_ddp.config.host import dotlist, host_config, host_edits, json_config
from robomimic_ddp.errors import LaunchError, RobomimicDDPError

_OUR_ENTRY = "robomimic_ddp.train_rlds"
_OWN_KEYS = re.compile(r"\bunlocked\(\)|\bunlock_keys\(\)|\bnew_keys=True\b")
"""A train script that may declare keys before it reads the config, or as it reads it."""
_KEEPS_CONFIG = {"--debug", "--resume"}
"""Flags of hosts' train.py that change neither keys nor data."""


def check_script() -> None:
    """End the process if the training script that it runs has been started with a mistake. Called
    when the script imports the api.
    """
    entry = host_edits.main_text()
    if "robomimic_ddp" not in entry or "entry_point(" not in entry:
        return
    words = dotlist.keys_beside_config()
    with early_failure.shown():
        require_options()
        if words:
            dotlist.require_accepted(words, entry)
        with leaving_the_rest():
            job_config(entry, sys.argv[1:])


def require_options() -> None:
    """Raise OptionError for an option that does not exist, or an impossible value, on this
    process's command line or in its environment.
    """
    options.resolve(dotlist.options(), launch_env.option_texts(env.variables()))


def job_config(entry: str, words: Sequence[str]) -> Any:
    """Return the config of the ranks that are started with `words` by a script whose source text
    is `entry`; None where it cannot be known. Raises the ranks' errors.
    """
    if {"-h", "--help"} & {*words}:
        return None
    if _OUR_ENTRY in entry:
        return dot_list_config(words)
    config = _config_of_flags(entry, words)
    return None if config is None else _checked(config)


def dot_list_config(words: Sequence[str]) -> Any:
    """Return the host's locked config for a dot-list. Raises ConfigError and OptionError."""
    return _checked(host_config.build_config(words))


def _checked(config: Any) -> Any:
    host_config.checked_options(config, launch_env.option_texts(env.variables()))
    return config


def _config_of_flags(entry: str, words: Sequence[str]) -> Any:
    """Return the config of a script with --config and the key=value words that are ours."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    flags, rest = parser.parse_known_args(list(dotlist.overrides(words)))
    reads_config = "config_factory" in entry and not _OWN_KEYS.search(entry)
    if flags.config is None or not reads_config or {*rest} - _KEEPS_CONFIG:
        return None
    from robomimic.config import config_factory

    content = json_config.require_algorithm(flags.config)
    config = config_factory(content["algo_name"])
    host_config.prepare_config(config, content)
    with config.values_unlocked():
        config.update(content)
    return config


@contextmanager
def leaving_the_rest() -> Iterator[None]:
    """Pass the errors of users; leave to the ranks what is not certain: a host's config that is not
    as robomimic's or needs torch, and variables of a launcher.
    """
    try:
        yield
    except LaunchError:
        return
    except RobomimicDDPError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
    except Exception:  # of the host's code
        return
