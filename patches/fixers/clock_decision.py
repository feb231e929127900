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

CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "datetime.datetime.now")
LOGICAL = (cst.BooleanOperation, cst.Comparison, cst.UnaryOperation)


def find(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    """`check = <comparison of times>` becomes `check = DDPUtils.agree(<comparison of times>)`. In
    `config.x is not None and <comparison>` the first part stays outside: it is the same on all
    ranks.
    """
    done = api_calls(source, train, "agree")
    agreed = {comparison for call in done for comparison in walk(call, cst.Comparison)}
    readings = _readings(source, train)
    left = [
        comparison
        for comparison in walk(train, cst.Comparison)
        if comparison not in agreed and _reads_clock(source, comparison, readings)
    ]
    yield from done
    for decision in _decisions(train):
        inside = [test for test in walk(decision, cst.Comparison) if test in left]
        if inside:
            yield wrap(source, _without_config(decision, train), "agree")
            left = [test for test in left if test not in inside]
    if left:
        why = "a time is compared, but not as a condition or assigned decision"
        yield unrecognised(source, left[0], why)


def _decisions(train: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
    for statement in walk(train, (cst.Assign, cst.If, cst.While)):
        decision = statement.value if isinstance(statement, cst.Assign) else statement.test
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
    """Return the variables of a time, or a difference of times."""
    return {
        target.target.value
        for assign in walk(train, cst.Assign)
        if isinstance(assign.value, (cst.Call, cst.BinaryOperation))
        and any(calls(source, assign.value, *CLOCKS))
        for target in assign.targets
        if isinstance(target.target, cst.Name)
    }


def _reads_clock(source: Source, comparison: cst.Comparison, readings: set[str]) -> bool:
    names = {name.value for name in walk(comparison, cst.Name)}
    return not names.isdisjoint(readings) or any(calls(source, comparison, *CLOCKS))


FIXER = Fixer(
    "clock",
    TRAIN_SCRIPTS,
    find,
    "write DDPUtils.agree(...) around the condition, where every rank reaches it",
    within="def train",
    words=("def train(", "time"),
    missing="train() decides nothing from the clock",
)
