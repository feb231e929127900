"""Copies that `train()` makes (last.pth to last_bak.pth): by the main rank, once, atomically."""

from __future__ import annotations

from robomimic_ddp.patches.cst import (
    TRAIN_SCRIPTS,
    api_calls,
    calls,
    rename,
    settle,
    train_function,
    unrecognised,
)
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source

OTHERS = (
    "shutil.copy",
    "shutil.copy2",
    "shutil.copytree",
    "shutil.move",
    "os.rename",
    "os.replace",
)


def fix(source: Source) -> Outcome:
    """`shutil.copyfile(source, target)` becomes `DDPUtils.copyfile(source, target)`."""
    train = train_function(source)
    if train is None:
        return NotPresent("no function train at top level")
    for call in calls(source, train, *OTHERS):
        return unrecognised(
            source, call, "every rank would copy or move these files at the same time"
        )
    edits = [rename(source, call, "copyfile") for call in calls(source, train, "shutil.copyfile")]
    return settle(edits, api_calls(source, train, "copyfile"), "train() copies no file")


FIXER = Fixer(
    seam="files",
    files=TRAIN_SCRIPTS,
    words=("def train(",),
    fix=fix,
    by_hand=(
        "copy a single file with DDPUtils.copyfile(source, target); put anything else into a "
        "function under @DDPUtils.main_rank_only"
    ),
    required=False,
)
