"""diffusers' EMAModel, whose arguments changed after 0.11: the average becomes one of ours."""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.edits import api_calls, calls, rename
from robomimic_ddp.patches.outcomes import Fixer, Found, NotPresent
from robomimic_ddp.patches.syntax.source import Source, walk

CLASSES = ("diffusers.training_utils.EMAModel", "diffusers.EMAModel")


def find(source: Source, module: cst.Module) -> list[Found]:
    """`EMAModel(model=nets, ...)` and `EMAModel(parameters=nets.parameters(), ...)` become
    `DDPUtils.averaged_copy(...)`.

    A host that tries one call and takes the other where it fails runs with any diffusers by itself:
    its average is left as it is, since which arithmetic it gets depends on that.
    """
    constructors, own_way = list(calls(source, module, *CLASSES)), _attempts(source)
    places = [
        rename(source, call, "averaged_copy")
        for call in constructors
        if call not in own_way and _is_known(call)
    ]
    places += api_calls(source, module, "averaged_copy")
    if places:
        return places
    if constructors:
        why = f"EMAModel in line {source.line(constructors[0])} works with any version of diffusers"
        return [NotPresent(f"{why}; the host keeps it")]
    return []


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
    missing="no EMAModel of diffusers is called by that name",
)
