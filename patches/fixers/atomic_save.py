"""`torch.save` in `save_model` or its helper: a crash leaves the previous checkpoint readable."""

from __future__ import annotations

from itertools import chain

import libcst as cst

from robomimic_ddp.patches.cst import api_calls, calls, definition, rename, settle, unrecognised
from robomimic_ddp.patches.imports import dotted
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk


def fix(source: Source) -> Outcome:
    """`torch.save(params, path)` becomes `DDPUtils.save(params, path)`."""
    function = definition(source, "save_model")
    if not isinstance(function, cst.FunctionDef):
        return NotPresent("no function save_model at top level")
    edits, done = [], []
    functions = [function, *_helpers(source, function)]
    for one in functions:
        done += api_calls(source, one, "save")
    found = (calls(source, one, "torch.save", "torch.serialization.save") for one in functions)
    for call in chain.from_iterable(found):
        if len(call.args) != 2 or any(arg.keyword or arg.star for arg in call.args):
            return unrecognised(
                source, call, "torch.save is called in another way than torch.save(params, path)"
            )
        edits.append(rename(source, call, "save"))
    return settle(edits, done, "save_model does not call torch.save")


def _helpers(source: Source, function: cst.FunctionDef) -> list[cst.FunctionDef]:
    """Functions of the file that `function` calls by their names."""
    called = {dotted(call.func) for call in walk(function, cst.Call)} - {""}
    helpers = (definition(source, name) for name in sorted(called - {function.name.value}))
    return [helper for helper in helpers if isinstance(helper, cst.FunctionDef)]


FIXER = Fixer(
    seam="checkpoints",
    files=("utils/train_utils.py",),
    words=("def save_model(",),
    fix=fix,
    by_hand="write the checkpoint with DDPUtils.save(params, path)",
    required=False,
)
