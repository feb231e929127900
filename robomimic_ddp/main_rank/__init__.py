"""Once, on the main rank, told to all: directories, prompts, decisions, files and loggers.

Decorators read the rank when the decorated thing is called, since hosts import their modules
before the process group exists.
"""

from __future__ import annotations

from robomimic_ddp.distributed.atomic_files import (
    atomic_open,
    copyfile,
    must_be_written,
    open_on_main,
)
from robomimic_ddp.distributed.main_rank import agree, ask, main_rank_only, on_main
from robomimic_ddp.distributed.quiet_streams import quiet_stdout
from robomimic_ddp.main_rank.loggers import data_logger, print_logger

__all__ = [
    "agree",
    "ask",
    "atomic_open",
    "copyfile",
    "data_logger",
    "main_rank_only",
    "must_be_written",
    "on_main",
    "open_on_main",
    "print_logger",
    "quiet_stdout",
]
