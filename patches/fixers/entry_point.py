"""`main()` of a train script: one clear error for the whole job, and a non-zero exit."""

from __future__ import annotations

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS, decorate
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.entry_point(api_version=1)` on `main`."""
    return decorate(source, "main", "entry_point", arguments="api_version=1")


FIXER = Fixer(
    seam="errors",
    files=TRAIN_SCRIPTS,
    words=("def main(",),
    fix=fix,
    by_hand="decorate the function that the script runs with @DDPUtils.entry_point(api_version=1)",
)
