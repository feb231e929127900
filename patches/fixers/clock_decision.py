"""A decision that `train()` takes from the clock ("a checkpoint every n seconds").

Ranks' clocks differ, and a rank that decides alone waits without end in the next collective.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import api_calls, calls, unrecognised, wrap
from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.source import Source, children, walk

CLOCKS = (
    *("time.time", "time.monotonic", "time.perf_counter", "time.process_time"),
    *("timeit.default_timer", "datetime.datetime.now", "datetime.datetime.utcnow"),
)
LOGICAL = (cst.BooleanOperation, cst.Comparison, cst.UnaryOperation)
ASSIGNMENTS = (cst.Assign, cst.AnnAssign, cst.AugAssign)
_ROUNDED = tuple(f"builtins.{name}" for name in ("abs", "float", "int", "max", "min", "round"))
_PARTS = {"days", "seconds", "total_seconds"}
"""Functions, and attributes of a time, whose value is a time."""


def find(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    """`check = <comparison of times>` becomes `check = DDPUtils.agree(<comparison of times>)`. In
    `config.x is not None and <comparison>` the first part stays outside: it is the same on all
    ranks.
    """
    done = api_calls(source, train, "agree")
    agreed = {comparison for call in done for comparison in walk(call, cst.Comparison)}
    readings = _readings(source, train)
    times = _times(source, train, readings)
    left = [
        comparison
        for comparison in walk(train, cst.Comparison)
        if comparison not in agreed and _reads_clock(source, comparison, times)
    ]
    yield from done
    for decision in _decisions(train):
        inside = [test for test in walk(decision, cst.Comparison) if test in left]
        if inside:
            yield wrap(source, _without_config(decision, train), "agree")
            left = [test for test in left if test not in inside]
    # What is computed from a time is mostly shown: `"h" if hours > 1 else "min"`.
    left = [comparison for comparison in left if _reads_clock(source, comparison, readings)]
    if left:
        why = "a time is compared, but not as a condition or assigned decision"
        yield unrecognised(source, left[0], why)


def _decisions(train: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
    for statement in walk(train, (*ASSIGNMENTS, cst.If, cst.While)):
        decision = statement.test if isinstance(statement, (cst.If, cst.While)) else statement.value
        if isinstance(decision, LOGICAL):
            yield decision


def _without_config(decision: cst.BaseExpression, train: cst.FunctionDef) -> cst.BaseExpression:
    """Return what of `a and b` is decided by more than the configuration."""
    config = next((param.name.value for param in train.params.params), "")
    while (
        isinstance(decision, cst.BooleanOperation)
        and isinstance(decision.operator, cst.And)
        and _is_settled(decision.left, config)
    ):
        decision = decision.right
    return decision


def _is_settled(node: cst.BaseExpression, config: str) -> bool:
    """Return whether `node` is made of constants and values of the configuration only."""
    if isinstance(node, (*LOGICAL, cst.ComparisonTarget)):
        parts = (cst.BaseExpression, cst.ComparisonTarget)
        return all(
            _is_settled(child, config) for child in children(node) if isinstance(child, parts)
        )
    if isinstance(node, (cst.Name, cst.Attribute)):
        return dotted(node).split(".")[0] in (config, "None", "True", "False")
    return isinstance(node, (cst.BaseNumber, cst.SimpleString))


def _readings(source: Source, train: cst.FunctionDef) -> set[str]:
    """Return the variables of a time, or a difference or sum of times."""
    return {
        name
        for name, value in _assigned(train)
        if isinstance(value, (cst.Call, cst.BinaryOperation))
        and any(calls(source, value, *CLOCKS))
        and not source.is_api(value, "agree")
    }


def _times(source: Source, train: cst.FunctionDef, readings: set[str]) -> set[str]:
    """Return `readings`, and the variables of what is computed from them: `hours = spent / 3600`,
    `total += spent`.
    """
    times = set(readings)
    assigned = list(_assigned(train))
    while further := {name for name, value in assigned if _is_time(source, value, times)} - times:
        times |= further
    return times


def _assigned(train: cst.FunctionDef) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield each variable that is assigned, or added to, and the value."""
    for assign in walk(train, ASSIGNMENTS):
        targets = assign.targets if isinstance(assign, cst.Assign) else (assign,)
        for target in targets:
            if isinstance(target.target, cst.Name) and assign.value is not None:
                yield target.target.value, assign.value


def _is_time(source: Source, value: cst.BaseExpression, times: set[str]) -> bool:
    """Return whether `value` is computed from the variables `times` alone or with numbers."""
    if isinstance(value, cst.Name):
        return value.value in times
    if isinstance(value, cst.Attribute):
        return value.attr.value in _PARTS and _is_time(source, value.value, times)
    if isinstance(value, cst.BinaryOperation):
        parts = [value.left, value.right]
    elif isinstance(value, cst.Call):
        is_rounded = source.resolves(value.func, *_ROUNDED)
        parts = [arg.value for arg in value.args] if is_rounded else [value.func]
    else:
        parts = []
    return any(_is_time(source, part, times) for part in parts)


def _reads_clock(source: Source, comparison: cst.Comparison, times: set[str]) -> bool:
    return not times.isdisjoint(_variables(comparison)) or any(calls(source, comparison, *CLOCKS))


def _variables(node: cst.CSTNode) -> Iterator[str]:
    """Yield the variables at or under `node`: of `x.y` only x."""
    if isinstance(node, cst.Name):
        yield node.value
    for child in [node.value] if isinstance(node, cst.Attribute) else children(node):
        yield from _variables(child)


FIXER = Fixer(
    "clock",
    TRAIN_SCRIPTS,
    find,
    "write DDPUtils.agree(...) around the condition, where every rank reaches it",
    within="def train",
    words=("def train(", "time"),
    missing="train() decides nothing from the clock",
)
