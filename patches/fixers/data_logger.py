"""`DataLogger`: TensorBoard and wandb are the main rank's."""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import decorate
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.data_logger` on `DataLogger`."""
    return decorate(source, "DataLogger", "data_logger", kind=cst.ClassDef)


FIXER = Fixer(
    seam="loggers",
    files=("utils/log_utils.py",),
    words=("class DataLogger",),
    fix=fix,
    by_hand="decorate the class that writes TensorBoard and wandb with @DDPUtils.data_logger",
    required=False,
)
