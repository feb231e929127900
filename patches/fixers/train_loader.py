"""The training DataLoader(s) of `train()`: each rank takes its own part of the data."""

from __future__ import annotations

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS
from robomimic_ddp.patches.fixers._loaders import fix_loaders
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`train_loader = DataLoader(` becomes `train_loader = DDPUtils.train_loader(`."""
    return fix_loaders(source, "train")


FIXER = Fixer(
    seam="train loader",
    files=TRAIN_SCRIPTS,
    words=("def train(",),
    fix=fix,
    by_hand="make the loader with DDPUtils.train_loader(...); it takes the same arguments",
)
