"""The validation DataLoader(s) of `train()`: every sample is counted once over all ranks."""

from __future__ import annotations

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS
from robomimic_ddp.patches.fixers._loaders import fix_loaders
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`valid_loader = DataLoader(` becomes `valid_loader = DDPUtils.valid_loader(`."""
    return fix_loaders(source, "valid")


FIXER = Fixer(
    seam="valid loader",
    files=TRAIN_SCRIPTS,
    words=("def train(",),
    fix=fix,
    by_hand="make the loader with DDPUtils.valid_loader(...); it takes the same arguments",
    required=False,
)
