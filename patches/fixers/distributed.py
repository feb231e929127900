"""`train(config, device, ...)`: plan, process group, quiet other ranks, clean end."""

from __future__ import annotations

from robomimic_ddp.patches.cst import (
    TRAIN_SCRIPTS,
    decorate,
    parameters,
    train_function,
    unrecognised,
)
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.distributed` on `train`."""
    train = train_function(source)
    if train is not None and parameters(train)[:2] != ["config", "device"]:
        found = ", ".join(parameters(train))
        return unrecognised(
            source, train, f"train({found}) was expected to begin with (config, device)"
        )
    return decorate(source, "train", "distributed")


FIXER = Fixer(
    seam="process group",
    files=TRAIN_SCRIPTS,
    words=("def train(",),
    fix=fix,
    by_hand="decorate the function train(config, device, ...) with @DDPUtils.distributed",
)
