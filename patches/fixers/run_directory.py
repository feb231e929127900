"""`get_exp_dir`: the main rank makes the run's folders, and every rank gets the same paths."""

from __future__ import annotations

from robomimic_ddp.patches.cst import decorate
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.run_directory` on `get_exp_dir`."""
    return decorate(source, "get_exp_dir", "run_directory")


FIXER = Fixer(
    seam="run directory",
    files=("utils/train_utils.py",),
    words=("def get_exp_dir(",),
    fix=fix,
    by_hand="decorate the function that makes the run's folders with @DDPUtils.run_directory",
)
