"""diffusers' EMAModel, whose arguments changed after 0.11: the average becomes one of ours."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import api_calls, calls, rename, settle
from robomimic_ddp.patches.imports import dotted
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source, walk

CLASSES = ("diffusers.training_utils.EMAModel", "diffusers.EMAModel")


def fix(source: Source) -> Outcome:
    """`EMAModel(model=nets, ...)` and `EMAModel(parameters=nets.parameters(), ...)` become
    `DDPUtils.averaged_copy(...)`.

    A host that tries one call and takes the other where it fails runs with any diffusers by itself:
    its average is left as it is, since which arithmetic it gets depends on that.
    """
    own_way = {call for attempt in _attempts(source) for call in attempt}
    edits = [
        rename(source, call, "averaged_copy")
        for call in calls(source, source.module, *CLASSES)
        if call not in own_way and _is_known(call)
    ]
    done = api_calls(source, source.module, "averaged_copy")
    return settle(edits, done, _why_none(source, bool(own_way)))


def _why_none(source: Source, has_own_way: bool) -> str:
    if has_own_way:
        return "the host makes its EMAModel with any version of diffusers, and keeps it"
    made = list(calls(source, source.module, *CLASSES))
    if made:
        return f"EMAModel in line {source.line(made[0])} fits both versions; the host keeps it"
    named = [
        call
        for call in walk(source.module, cst.Call)
        if dotted(call.func).rpartition(".")[2] == "EMAModel"
    ]
    if named:
        return (
            f"EMAModel in line {source.line(named[0])} is not imported from diffusers by its name; "
            "the host keeps it"
        )
    return "no EMAModel is called"


def _is_known(call: cst.Call) -> bool:
    """Whether the form tells which of the two classes was meant; a module by position fits both."""
    if any(
        arg.keyword is not None and arg.keyword.value in ("model", "parameters")
        for arg in call.args
    ):
        return True
    first = call.args[0] if call.args else None
    if first is None or first.star or first.keyword is not None:
        return False
    function = first.value.func if isinstance(first.value, cst.Call) else None
    return isinstance(function, cst.Attribute) and function.attr.value == "parameters"


def _attempts(source: Source) -> Iterator[list[cst.Call]]:
    """The calls of each `try` that makes one average in its body, and another after a failure."""
    for attempt in walk(source.module, cst.Try):
        first = list(calls(source, attempt.body, *CLASSES))
        others = [call for handler in attempt.handlers for call in calls(source, handler, *CLASSES)]
        if first and others:
            yield [*first, *others]


FIXER = Fixer(
    seam="average",
    files=("algo/*.py", "utils/*.py"),
    words=("EMAModel", "diffusers"),
    fix=fix,
    by_hand="make it with DDPUtils.averaged_copy(model=nets, ...), with EMAModel's arguments",
    required=False,
)
