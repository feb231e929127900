"""`torch.save` in `save_model`: a crash while it writes leaves the previous checkpoint readable."""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import api_calls, calls, definition, rename, settle, unrecognised
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source


def fix(source: Source) -> Outcome:
    """`torch.save(params, path)` becomes `DDPUtils.save(params, path)`."""
    function = definition(source, "save_model")
    if not isinstance(function, cst.FunctionDef):
        return NotPresent("no function save_model at top level")
    edits = []
    for call in calls(source, function, "torch.save", "torch.serialization.save"):
        if len(call.args) != 2 or any(arg.keyword or arg.star for arg in call.args):
            return unrecognised(
                source, call, "torch.save is called in another way than torch.save(params, path)"
            )
        edits.append(rename(source, call, "save"))
    return settle(edits, api_calls(source, function, "save"), "save_model does not call torch.save")


FIXER = Fixer(
    seam="checkpoints",
    files=("utils/train_utils.py",),
    words=("def save_model(",),
    fix=fix,
    by_hand="write the checkpoint with DDPUtils.save(params, path)",
    required=False,
)
