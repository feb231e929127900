"""`save_model`: checkpoints are written by the main rank only."""

from __future__ import annotations

from robomimic_ddp.patches.cst import decorate
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.main_rank_only` on `save_model`."""
    return decorate(source, "save_model", "main_rank_only")


FIXER = Fixer(
    seam="checkpoints",
    files=("utils/train_utils.py",),
    words=("def save_model(",),
    fix=fix,
    by_hand="decorate the function that writes checkpoints with @DDPUtils.main_rank_only",
)
