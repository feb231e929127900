"""The run itself: the learning rate, the epoch loop, and the best values so far."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import (
    TRAIN_SCRIPTS,
    api_calls,
    argument,
    key_of,
    put_after,
    unrecognised,
    wrap,
)
from robomimic_ddp.patches.imports import dotted
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.source import Source, children, walk

BEST = ("best_valid_loss", "best_return", "best_success_rate")


def _loop(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    """`for epoch in range(...)` becomes `for epoch in DDPUtils.epochs(range(...), model)`.

    The loop is the outermost one that calls `run_epoch`; the model is what it hands to `run_epoch`.
    """
    loop = next((loop for loop in walk(train, cst.For) if any(_run_epoch_calls(loop))), None)
    if loop is None:
        where = next(_run_epoch_calls(train), train)
        why = "train() has no `for epoch in ...` loop that calls run_epoch"
        yield unrecognised(source, where, why)
    if source.is_api(loop.iter, "epochs"):
        yield loop
        return
    models = {dotted(argument(call, 0, "model") or loop) for call in _run_epoch_calls(loop)}
    if len(models) != 1 or "" in models:
        yield unrecognised(source, loop, "run_epoch is not handed one model by name")
    if not isinstance(loop.iter, (cst.Call, cst.Name)):
        yield unrecognised(source, loop, "the loop does not run over a range(...)")
    yield wrap(source, loop.iter, "epochs", models.pop())


def _run_epoch_calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    """Calls of it, or of a host's further kind of epoch, such as `run_epoch_mt`."""
    for call in walk(node, cst.Call):
        if dotted(call.func).rpartition(".")[2].startswith("run_epoch"):
            yield call


def _first_values(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    """`best_valid_loss = None` becomes `best_valid_loss = DDPUtils.restored("best_valid_loss",
    None)`: before the epoch loop, outside of any condition (a host's own `if resume:` stays).
    """
    for statement in train.body.body:
        if isinstance(statement, cst.For) and any(_run_epoch_calls(statement)):
            return
        lines = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        for assign in lines:
            if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
                name = dotted(assign.targets[0].target)
                if name in BEST and source.is_api(assign.value, "restored"):
                    yield assign
                elif name in BEST:
                    yield put_after(source, assign.value, "restored", f'"{name}"')


def _rates(source: Source, function: cst.FunctionDef) -> list[Found]:
    """`params["learning_rate"]["initial"]` becomes `DDPUtils.scale_lr(...)` of it."""
    done = api_calls(source, function, "scale_lr")
    scaled = {call.args[0].value for call in done if call.args}
    rates = [rate for rate in _initial_rates(function) if rate not in scaled]
    if not rates and not done:
        why = 'no initial learning rate is read as ["learning_rate"]["initial"]'
        return [unrecognised(source, function, why)]
    return [*done, *(wrap(source, rate, "scale_lr") for rate in rates)]


def _initial_rates(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    if _key(node) == "initial" and _key(node.value) == "learning_rate":
        yield node
        return
    for child in children(node):
        yield from _initial_rates(child)


def _key(node: cst.CSTNode) -> str:
    """The x of `params["x"]` and of `params.x`."""
    return node.attr.value if isinstance(node, cst.Attribute) else key_of(node)


FIXERS = {
    # The one place where every rank stands with model and data made.
    "epochs": Fixer(
        "epoch loop",
        TRAIN_SCRIPTS,
        _loop,
        "write the epoch loop as: for epoch in DDPUtils.epochs(range(...), model)",
        within="def train",
    ),
    # Kept with the run's state.
    "restored": Fixer(
        "best so far",
        TRAIN_SCRIPTS,
        _first_values,
        'write the first value as best_valid_loss = DDPUtils.restored("best_valid_loss", None)',
        within="def train",
        words=("def train(", "best_"),
        missing=f"train() has no variable {', '.join(BEST)}: when a run goes on, the best so far "
        "begins anew",
        required=False,
    ),
    # Where the optimizer is made: scaled as the plan says.
    "scale_lr": Fixer(
        "learning rate",
        ("utils/torch_utils.py",),
        _rates,
        "pass the initial learning rate through DDPUtils.scale_lr(lr)",
        within="def optimizer_from_optim_params",
    ),
}
