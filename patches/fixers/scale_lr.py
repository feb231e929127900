"""The initial learning rate, where the optimizer is made: scaled as the plan says."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import api_calls, definition, settle, unrecognised, wrap
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, children


def fix(source: Source) -> Outcome:
    """`net_optim_params["learning_rate"]["initial"]` becomes `DDPUtils.scale_lr(...)` of it."""
    function = definition(source, "optimizer_from_optim_params")
    if not isinstance(function, cst.FunctionDef):
        return NotPresent("no function optimizer_from_optim_params at top level")
    done = api_calls(source, function, "scale_lr")
    scaled = {call.args[0].value for call in done if call.args}
    edits = [
        wrap(source, rate, "scale_lr") for rate in _initial_rates(function) if rate not in scaled
    ]
    if not edits and not done:
        return unrecognised(
            source,
            function,
            'no initial learning rate is read as ["learning_rate"]["initial"]',
        )
    return settle(edits, done, "")


def _initial_rates(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    if _key(node) == "initial" and _key(node.value) == "learning_rate":
        yield node
        return
    for child in children(node):
        yield from _initial_rates(child)


def _key(node: cst.CSTNode) -> str:
    """The x of `params["x"]` and of `params.x`."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    if isinstance(node, cst.Subscript) and isinstance(node.slice[0].slice, cst.Index):
        key = node.slice[0].slice.value
        return str(key.evaluated_value) if isinstance(key, cst.SimpleString) else ""
    return ""


FIXER = Fixer(
    seam="learning rate",
    files=("utils/torch_utils.py",),
    words=("def optimizer_from_optim_params(",),
    fix=fix,
    by_hand="pass the initial learning rate through DDPUtils.scale_lr(lr)",
)
