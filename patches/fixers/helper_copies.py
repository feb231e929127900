"""Files that a helper of `train()` copies (last.pth to last_bak.pth): by the main rank, once."""

from __future__ import annotations

from robomimic_ddp.patches.cst import api_calls, calls, rename, settle
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`shutil.copyfile(source, target)` becomes `DDPUtils.copyfile(source, target)`, which writes
    atomically, on the main rank. What other ranks would copy is not there yet.
    """
    found = calls(source, source.module, "shutil.copyfile")
    edits = [rename(source, call, "copyfile") for call in found]
    done = api_calls(source, source.module, "copyfile")
    return settle(edits, done, "no helper copies a file")


FIXER = Fixer(
    seam="files",
    files=("utils/train_utils.py",),
    words=("copyfile",),
    fix=fix,
    by_hand="copy it with DDPUtils.copyfile(source, target)",
    required=False,
    absent="no helper copies a file",
)
