"""What every rank would refuse, found before torchrun starts them: the ranks' own checks of
options, config and data, those that need no torch.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE, Settings
from robomimic_ddp.config import host_config, host_seams, json_config
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.data.rlds import tfds_sharding
from robomimic_ddp.data.rlds.schema.job_config import dataset_configs
from robomimic_ddp.errors import LaunchError, PatchError, RobomimicDDPError

_SLOW = ("torch", "tensorflow", "jax")
_EPISODES = 20
"""Episodes of an HDF5 file that are looked at here; the ranks look at more."""
_OWN_KEYS = re.compile(r"\bunlocked\(\)|\bunlock_keys\(\)")
"""A train script that may declare keys before it reads the config."""
_KEEPS_CONFIG = {"--debug", "--resume"}
"""Flags of hosts' train.py that change neither keys nor data."""


def require_trainable(settings: Settings) -> None:
    """Raise what would stop all ranks, or should; within about a second.

    Says nothing where that is not certain: of an entry or a host's config that is not as
    robomimic's, or that needs torch. Data is looked for only if there is one node: others may have
    it elsewhere.
    """
    entry = require_patched(settings.module)
    try:
        with _quiet_without_slow_imports():
            config = _config(settings, entry)
        if config is not None and settings.nodes == 1:
            _require_data(config)
    except LaunchError:  # of variables that torchrun replaces
        return
    except RobomimicDDPError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
    except Exception:  # of the host's code: the ranks show it
        return


def require_patched(module: str = DOT_LIST_MODULE) -> str:
    """Return the source text of a training module, "" if it is not in a host. Finds it as a rank
    finds it, without an import. Raises PatchError if the host's train script cannot run on several
    ranks; a module that does not train passes.
    """
    package, *inner = module.split(".")
    folder = host_seams.importable_folder(package)
    if folder is None or not (folder / "utils" / "train_utils.py").is_file():
        return ""
    file = folder.joinpath(*inner).with_suffix(".py")
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    if "def train(" in text and "robomimic_ddp" not in text:
        why = f"{file} is not patched: every rank would train a separate model"
    elif not file.is_file() and module == DOT_LIST_MODULE:
        why = f"there is no {file}, which robomimic-ddp apply adds to the host"
    else:
        return text
    raise PatchError(
        f"{why}. Python finds this robomimic first: run `robomimic-ddp apply` on it, or start in "
        "the folder of the host that is patched."
    )


def _config(settings: Settings, entry: str) -> Any:
    """Return the config of the ranks, or None if it cannot be known. Raises the ranks' errors."""
    if settings.takes_dot_list:
        if "robomimic_ddp.train_rlds" not in entry or {"-h", "--help"} & {*settings.overrides}:
            return None  # the host's own entry, with layers that we do not know
        return host_config.config_of_job(settings.config, settings.overrides)[0]
    flags = {word for word in settings.overrides if not word.startswith("ddp.")}
    if "prepare_config" not in entry or _OWN_KEYS.search(entry) or flags - _KEEPS_CONFIG:
        return None
    from robomimic.config import config_factory

    content = json_config.read_json(settings.config, "--config ")
    config = config_factory(content["algo_name"])
    host_config.prepare_config(config, content)
    with config.values_unlocked():
        config.update(content)
    return config


def _require_data(config: Any) -> None:
    hdf5 = host_config.ROBOMIMIC_FORMAT
    if host_config.uses_rlds(config):
        dataset_configs(config)
    elif host_config.trains_by_own_pipeline(config):
        tfds_sharding.require_datasets(config.train.data_path, config.train.dataset_names)
    elif config.train.get("data_format", hdf5) == hdf5:
        hdf5_validate.check(config, _EPISODES)


@contextmanager
def _quiet_without_slow_imports() -> Iterator[None]:
    """Have imports of _SLOW that are not imported yet raise ImportError in the block, and print
    nothing.
    """
    hidden = [name for name in _SLOW if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
