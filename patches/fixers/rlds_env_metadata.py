"""`get_env_metadata_from_dataset`: answers for the folder of an RLDS dataset too.

Hosts of the DROID family read RLDS datasets by themselves and are left to it.
"""

from __future__ import annotations

from robomimic_ddp.patches.cst import decorate
from robomimic_ddp.patches.hosts import READS_RLDS
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`@DDPUtils.rlds_env_metadata` on `get_env_metadata_from_dataset`."""
    if READS_RLDS in source.traits:
        return NotPresent("the host reads RLDS datasets itself")
    return decorate(source, "get_env_metadata_from_dataset", "rlds_env_metadata")


FIXER = Fixer(
    seam="RLDS",
    files=("utils/file_utils.py",),
    words=("def get_env_metadata_from_dataset(",),
    fix=fix,
    by_hand=(
        "decorate the function that reads a dataset's environment metadata "
        "with @DDPUtils.rlds_env_metadata"
    ),
    required=False,
)
