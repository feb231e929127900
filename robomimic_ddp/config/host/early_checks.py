"""What every rank would refuse in its command line and config, found before torch, TensorFlow and
the host's code are imported, which takes many seconds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any

from robomimic_ddp.config import early_failure, env, launch_env, options, tree
from robomimic_ddp.config.host import dotlist, host_config, host_edits, json_config
from robomimic_ddp.config.planning.plan import batch_per_rank
from robomimic_ddp.errors import LaunchError, RobomimicDDPError

_OWN_KEYS = re.compile(r"\bunlocked\(\)|\bunlock_keys\(\)|\bnew_keys=True\b")
"""A train script that may declare keys before it reads the config, or as it reads it."""
_KEEPS_CONFIG = {"--debug", "--resume"}
"""Flags of hosts' train.py that change neither keys nor data."""


def check_script() -> None:
    """End the process if the training script that it runs has been started with a mistake. Called
    when the script imports the api. A host's config that is not as robomimic's, or needs torch, and
    variables of a launcher are left to the ranks.
    """
    entry = host_edits.main_text()
    if "robomimic_ddp" not in entry or "entry_point(" not in entry:
        return
    env.defer_tensorflow()
    words = dotlist.keys_beside_config()
    with early_failure.shown():
        options.resolve(dotlist.options(), launch_env.option_texts(env.variables()))
        if words:
            dotlist.require_accepted(words, entry)
        try:
            if not {"-h", "--help"} & {*sys.argv[1:]}:
                _require_config(entry, sys.argv[1:])
        except RobomimicDDPError as error:
            if not isinstance(error, LaunchError) and not isinstance(error.__cause__, ImportError):
                raise
        except Exception:  # of the host's code
            return


def _require_config(entry: str, words: Sequence[str]) -> None:
    """Raise the ranks' errors for the config of a script with --config, whose source text is
    `entry`.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    flags, rest = parser.parse_known_args(list(dotlist.overrides(words)))
    if flags.config is None or "config_factory" not in entry:
        return
    if json_config.is_left_to_host(flags.config):
        return
    content = json_config.require_algorithm(flags.config)
    from robomimic.config import config_factory

    spelled = f"--config {flags.config}: "
    json_config.require_registered(content["algo_name"], config_factory, spelled)
    if _OWN_KEYS.search(entry) or {*rest} - _KEEPS_CONFIG:
        return
    config = config_factory(content["algo_name"])
    host_config.prepare_config(config, content)
    with config.values_unlocked():
        config.update(content)
    _require_possible(config)


def dot_list_config(words: Sequence[str]) -> Any:
    """Return the host's locked config for a dot-list. Raises what `_require_possible` raises."""
    config = host_config.build_config(words)
    _require_possible(config)
    return config


def _require_possible(config: Any) -> None:
    """Raise ConfigError, OptionError or PlanError for a finished config that no rank would train
    with, and LaunchError for variables of a launcher.
    """
    launch = launch_env.read_launch_env()
    resolved = host_config.checked_options(config, launch.option_texts)
    batch_per_rank(resolved.values, tree.at(config, "train.batch_size"), launch.world_size)
