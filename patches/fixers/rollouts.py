"""`rollout_with_stats`: video on the main rank only; every rank sees the same statistics."""

from __future__ import annotations

from robomimic_ddp.patches.cst import decorate
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.rollouts` on `rollout_with_stats`."""
    return decorate(source, "rollout_with_stats", "rollouts")


FIXER = Fixer(
    seam="rollouts",
    files=("utils/train_utils.py",),
    words=("def rollout_with_stats(",),
    fix=fix,
    by_hand="decorate the function that runs the rollouts with @DDPUtils.rollouts",
    required=False,
)
