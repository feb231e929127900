"""Files that `train()` copies, moves or removes (last.pth to last_bak.pth): by the main rank, once.

Of several ranks all but the first would find nothing left to move, or each other's half of a copy.
"""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import (
    TRAIN_SCRIPTS,
    api_calls,
    calls,
    rename,
    settle,
    train_function,
    wrap,
)
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk

OTHERS = (
    "shutil.copy",
    "shutil.copy2",
    "shutil.copytree",
    "shutil.move",
    "shutil.rmtree",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.replace",
    "os.unlink",
)
VIDEOS = "video_paths"
"""What rollouts return; only the main rank has them, so removing them needs no edit."""


def fix(source: Source) -> Outcome:
    """`shutil.copyfile(source, target)` becomes `DDPUtils.copyfile(source, target)`, which writes
    atomically; `shutil.move(...)` and others become `DDPUtils.main_rank_only(shutil.move)(...)`.
    """
    train = train_function(source)
    if train is None:
        return NotPresent("no function train at top level")
    edits = [rename(source, call, "copyfile") for call in calls(source, train, "shutil.copyfile")]
    for call in calls(source, train, *OTHERS):
        if not any(name.value == VIDEOS for arg in call.args for name in walk(arg, cst.Name)):
            edits.append(wrap(source, call.func, "main_rank_only"))
    done = api_calls(source, train, "copyfile") + api_calls(source, train, "main_rank_only")
    return settle(edits, done, "train() copies, moves and removes no file")


FIXER = Fixer(
    seam="files",
    files=TRAIN_SCRIPTS,
    words=("def train(",),
    fix=fix,
    by_hand="write DDPUtils.main_rank_only(shutil.copytree)(...) for what one rank must do",
    required=False,
)
