"""Checks before torchrun starts: those checks of the ranks on options, config and data that need no
torch.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE, Settings
from robomimic_ddp.config.host import early_checks, host_config, json_config
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.data.rlds import tfds_sharding
from robomimic_ddp.data.rlds.schema.job_config import dataset_configs
from robomimic_ddp.errors import PatchError

_SLOW = ("torch", "tensorflow", "jax")
_EPISODES = 20
"""Episodes of an HDF5 file to check here; the ranks check more."""


def require_trainable(settings: Settings) -> None:
    """Raise the errors that would stop all ranks, or should, within about a second.

    Passes where that is not certain. Data is checked on one node only: several nodes may have it in
    other places.
    """
    entry = require_patched(settings.module)
    path = str(settings.config)
    start = [f"load_from={path}"] if settings.takes_dot_list else ["--config", path]
    with _quiet_without_slow_imports(), early_checks.leaving_the_rest():
        json_config.read_json(path, "--config ")
        config = early_checks.job_config(entry, [*start, *settings.overrides])
        if config is not None and settings.nodes == 1:
            _require_data(config)


def require_patched(module: str = DOT_LIST_MODULE) -> str:
    """Return the source text of a training module, "" if it is not in a host. Raises PatchError if
    it trains and is not patched, or is missing; a module that does not train passes.
    """
    file = early_checks.module_file(module)
    text = early_checks.text_of(file)
    if "def train(" in text and "robomimic_ddp" not in text:
        fault = f"{file} is not patched: every rank would train a separate model"
    elif file is not None and not file.is_file() and module == DOT_LIST_MODULE:
        fault = f"there is no {file}, which robomimic-ddp apply adds to the host"
    else:
        return text
    raise PatchError(
        f"{fault}. Python imports this robomimic: run `robomimic-ddp apply` on it, or start in "
        "the folder of the host that is patched."
    )


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
    """For the block, print nothing, and let imports of _SLOW raise ImportError unless they are
    already imported.
    """
    hidden = [name for name in _SLOW if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
