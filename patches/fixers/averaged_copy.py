"""diffusers' EMAModel, whose arguments changed after 0.11: the average becomes one of ours."""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.edits import calls, rename
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.syntax.source import Source, walk

CLASSES = ("diffusers.training_utils.EMAModel", "diffusers.EMAModel")


def find(source: Source, module: cst.Module) -> list[Found]:
    """`EMAModel(model=nets, ...)` and `EMAModel(parameters=nets.parameters(), ...)` become
    `DDPUtils.averaged_copy(...)`.

    A host that tries one call and takes the other where it fails runs with any diffusers by itself:
    its average is left as it is, since which arithmetic it gets depends on that.
    """
    own_way = _attempts(source)
    return [
        rename(source, call, "averaged_copy")
        for call in calls(source, module, *CLASSES)
        if call not in own_way and _is_known(call)
    ]


def _is_known(call: cst.Call) -> bool:
    """Return whether the form tells which of the two classes was meant; `model` alone fits both."""
    if any(arg.keyword and arg.keyword.value in ("model", "parameters") for arg in call.args):
        return True
    first = call.args[0] if call.args else None
    if first is None or first.star or first.keyword is not None:
        return False
    function = first.value.func if isinstance(first.value, cst.Call) else None
    return isinstance(function, cst.Attribute) and function.attr.value == "parameters"


def _attempts(source: Source) -> set[cst.Call]:
    """Return the calls of each `try` that makes one average, and another after a failure."""
    attempts = set()
    for attempt in walk(source.module, cst.Try):
        first = set(calls(source, attempt.body, *CLASSES))
        others = {call for handler in attempt.handlers for call in calls(source, handler, *CLASSES)}
        attempts |= first | others if first and others else set()
    return attempts


FIXER = Fixer(
    "average",
    ("algo/*.py", "utils/*.py"),
    find,
    "make it with DDPUtils.averaged_copy(model=nets, ...), with EMAModel's arguments",
    words=("EMAModel", "diffusers"),
    done=("averaged_copy",),
    missing="no EMAModel is called as only one of diffusers' versions takes it",
)
