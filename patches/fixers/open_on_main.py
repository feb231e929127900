"""Files that `train()` writes itself (config.json): by the main rank, once, atomically."""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import (
    TRAIN_SCRIPTS,
    api_calls,
    argument,
    calls,
    rename,
    settle,
    train_function,
    unrecognised,
)
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`open(path, 'w')` becomes `DDPUtils.open_on_main(path, 'w')`; files opened to be read
    stay.
    """
    train = train_function(source)
    if train is None:
        return NotPresent("no function train at top level")
    edits = []
    for call in calls(source, train, "builtins.open"):
        mode = argument(call, 1, "mode")
        text = mode.evaluated_value if isinstance(mode, cst.SimpleString) else ""
        if mode is None or (text and not set(text) & set("wax+")):
            continue
        if text not in ("w", "wt", "wb") or len(call.args) != 2:
            return unrecognised(
                source, call, "a file is opened for writing in another way than open(path, 'w')"
            )
        edits.append(rename(source, call, "open_on_main"))
    return settle(
        edits, api_calls(source, train, "open_on_main"), "train() opens no file for writing"
    )


FIXER = Fixer(
    seam="files",
    files=TRAIN_SCRIPTS,
    words=("def train(",),
    fix=fix,
    by_hand="let only the main rank write it: with DDPUtils.open_on_main(path, 'w') as f",
    required=False,
)
