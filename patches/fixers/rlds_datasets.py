"""`load_data_for_training`: RLDS datasets when train.data_format is the RLDS one.

Hosts of the DROID family read RLDS datasets by themselves and are left to it.
"""

from __future__ import annotations

from robomimic_ddp.patches.cst import decorate
from robomimic_ddp.patches.hosts import READS_RLDS
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.rlds_datasets` on `load_data_for_training`."""
    if READS_RLDS in source.traits:
        return NotPresent("the host reads RLDS datasets itself")
    return decorate(source, "load_data_for_training", "rlds_datasets")


FIXER = Fixer(
    seam="RLDS",
    files=("utils/train_utils.py",),
    words=("def load_data_for_training(",),
    fix=fix,
    by_hand=(
        "decorate the function that makes the training and validation datasets "
        "with @DDPUtils.rlds_datasets"
    ),
    required=False,
)
