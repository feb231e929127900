"""The names that edited hosts use, and nothing else.

Every name works, and costs nothing, on one rank: a patched host contains no `if distributed`.
Functions that all ranks must call together say "Collective" first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from robomimic_ddp.config.host import early_checks

early_checks.check_script()  # before torch is imported, which takes seconds
# isort: split
from robomimic_ddp import API_VERSION
from robomimic_ddp.config import launch_env
from robomimic_ddp.config.host import dotlist, host_config, host_edits, json_config
from robomimic_ddp.data.language.lazy_model import language_model
from robomimic_ddp.distributed import entry_point as entry
from robomimic_ddp.distributed.atomic_files import open_on_main
from robomimic_ddp.distributed.main_rank import agree, ask, once
from robomimic_ddp.errors import RobomimicDDPError, other_api_version
from robomimic_ddp.monitoring import host_loggers
from robomimic_ddp.monitoring.host_loggers import print_logger
from robomimic_ddp.training import run
from robomimic_ddp.training.data_loaders import (
    rlds_datasets,
    rlds_env_metadata,
    rlds_shape_metadata,
    sharded,
    train_loader,
    valid_loader,
)
from robomimic_ddp.training.epoch import epoch_log, rollouts
from robomimic_ddp.training.nets import cuda_device, over_ranks, parallel, scale_lr
from robomimic_ddp.training.run_directory import begin_run, run_directory
from robomimic_ddp.training.session import distributed, epochs
from robomimic_ddp.training.state import resume
from robomimic_ddp.training.state.host_saves import copyfile, main_rank_only, save
from robomimic_ddp.training.step.ema import averaged_copy

__all__ = [
    "API_VERSION",
    "agree",
    "ask",
    "averaged_copy",
    "begin_run",
    "copyfile",
    "cuda_device",
    "data_logger",
    "distributed",
    "entry_point",
    "epoch_log",
    "epochs",
    "language_model",
    "load_from",
    "main_rank_only",
    "once",
    "open_on_main",
    "over_ranks",
    "overrides",
    "parallel",
    "prepare_config",
    "print_logger",
    "restored",
    "rlds_datasets",
    "rlds_env_metadata",
    "rlds_shape_metadata",
    "rollouts",
    "run_directory",
    "save",
    "scale_lr",
    "sharded",
    "train_loader",
    "valid_loader",
]

load_from = dotlist.load_from
overrides = dotlist.overrides
prepare_config = host_config.prepare_config
restored = resume.restored


def data_logger(cls: type) -> type:
    """Decorates the host's DataLogger, see `monitoring/host_loggers.py`; wandb's config gets the
    plan, and the log pictures.
    """
    return host_loggers.data_logger(cls, run.facts, run.draw_into)


def _is_other_rank() -> bool:
    try:
        return launch_env.read_launch_env().rank > 0
    except RobomimicDDPError:
        return False


def entry_point(api_version: int) -> Callable:
    """Decorates the host's `main(args)`: any failure ends the process non-zero and is recorded for
    torchrun.

    Moves ddp.NAME=value from sys.argv to our options. `api_version`: the version that the host was
    patched for; raises ApiVersionError when it differs.
    """
    error = other_api_version({api_version}, _is_other_rank())
    if error:
        raise error

    def decorate(main: Callable) -> Callable:
        if main.__module__ == "__main__":
            dotlist.take_options()

        @functools.wraps(main)
        def checked(*args: Any, **kwargs: Any) -> Any:
            json_config.require_config(args[0] if args else None, main)
            return main(*args, **kwargs)

        return entry.entry_point(checked)

    return decorate


host_edits.require_whole()  # a script that was put back begins no run, which would look
