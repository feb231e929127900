"""`run_epoch`: the log that it returns is the mean over all ranks' samples."""

from __future__ import annotations

from robomimic_ddp.patches.cst import decorate
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.epoch_log` on `run_epoch`."""
    return decorate(source, "run_epoch", "epoch_log")


FIXER = Fixer(
    seam="step log",
    files=("utils/train_utils.py",),
    words=("def run_epoch(",),
    fix=fix,
    by_hand="decorate the function that runs an epoch and returns its log with @DDPUtils.epoch_log",
)
