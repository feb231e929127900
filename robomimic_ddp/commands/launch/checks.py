"""What every rank would refuse, found before torchrun starts them: the ranks' own checks of
options, config and data, those that need no torch.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE, Settings
from robomimic_ddp.config import early_checks, host_config, json_config
from robomimic_ddp.data.hdf5 import hdf5_validate
from robomimic_ddp.data.rlds import tfds_sharding
from robomimic_ddp.data.rlds.schema.job_config import dataset_configs
from robomimic_ddp.errors import PatchError

_SLOW = ("torch", "tensorflow", "jax")
_EPISODES = 20
"""Episodes of an HDF5 file that are looked at here; the ranks look at more."""


def require_trainable(settings: Settings) -> None:
    """Raise what would stop all ranks, or should; within about a second.

    Says nothing where that is not certain. Data is looked for only if there is one node: others may
    have it elsewhere.
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
    the host's train script cannot run on several ranks; a module that does not train passes.
    """
    file = early_checks.module_file(module)
    text = early_checks.text_of(file)
    if "def train(" in text and "robomimic_ddp" not in text:
        why = f"{file} is not patched: every rank would train a separate model"
    elif file is not None and not file.is_file() and module == DOT_LIST_MODULE:
        why = f"there is no {file}, which robomimic-ddp apply adds to the host"
    else:
        return text
    raise PatchError(
        f"{why}. Python finds this robomimic first: run `robomimic-ddp apply` on it, or start in "
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
