"""The run itself: learning rates, batch statistics, the epoch loop, and the best values so far."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import (
    api_calls,
    argument,
    key_of,
    put_after,
    run_epoch_calls,
    unrecognised,
    wrap,
)
from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.source import Source, children, walk

BEST = ("best_valid_loss", "best_return", "best_success_rate")


def _loop(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    """`for epoch in range(...)`, the outermost loop that calls `run_epoch`, becomes `for epoch in
    DDPUtils.epochs(range(...), model)` with the model that `run_epoch` is given.
    """
    loop = _epoch_loop(train)
    if loop is None:
        where = next(run_epoch_calls(train), train)
        why = "train() has no `for epoch in ...` loop that calls run_epoch"
        yield unrecognised(source, where, why)
    if source.is_api(loop.iter, "epochs"):
        yield loop
        return
    models = {dotted(argument(call, 0, "model") or loop) for call in run_epoch_calls(loop)}
    if len(models) != 1 or "" in models:
        yield unrecognised(source, loop, "run_epoch is not handed one model by name")
    if not isinstance(loop.iter, (cst.Call, cst.Name)):
        yield unrecognised(source, loop, "the loop does not run over a range(...)")
    yield wrap(source, loop.iter, "epochs", models.pop())


def _first_values(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    """`best_valid_loss = None` becomes `best_valid_loss = DDPUtils.restored("best_valid_loss",
    None)`: before the epoch loop, outside of any condition (a host's own `if resume:` stays).
    So do further ones of a host, which the loop sets as `top_n = updated_stats["top_n"]`.
    """
    loop = _epoch_loop(train)
    names = {*BEST, *_kept_by(loop)}
    for statement in train.body.body:
        if statement is loop:
            return
        lines = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        for assign in lines:
            if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
                name = dotted(assign.targets[0].target)
                if name in names and not source.is_api(assign.value, "restored"):
                    yield put_after(source, assign.value, "restored", f'"{name}"')


def _epoch_loop(train: cst.FunctionDef) -> cst.For | None:
    return next((loop for loop in walk(train, cst.For) if any(run_epoch_calls(loop))), None)


def _kept_by(loop: cst.For | None) -> Iterator[str]:
    """Yield the variables that the loop sets to the entry of that name of something."""
    for assign in walk(loop, cst.Assign) if loop else ():
        name = dotted(assign.targets[0].target)
        if name and key_of(assign.value) == name:
            yield name


def _rates(source: Source, function: cst.FunctionDef) -> list[Found]:
    """`params["learning_rate"]["initial"]` becomes `DDPUtils.scale_lr(...)` of it."""
    places = _scaled(source, function)
    if not places:
        why = 'no initial learning rate is read as ["learning_rate"]["initial"]'
        return [unrecognised(source, function, why)]
    return places


def _own_rates(source: Source, module: cst.Module) -> Iterator[Found]:
    """Yield the same in other places that make an optimizer (`optim.Adam(params, lr=...)`), or in
    what is assigned to the variable `rate` of `lr=rate` in the same function.
    """
    seen: set[cst.CSTNode] = set()
    for function in (*walk(module, cst.FunctionDef), module):
        for call in walk(function, cst.Call):
            rate = argument(call, 1, "lr")
            makes_optimizer = (name.startswith("torch.optim.") for name in source.names(call.func))
            if rate is None or not any(makes_optimizer):
                continue
            values = [rate]
            if isinstance(rate, cst.Name) and function is not module:
                values = [
                    assign.value
                    for assign in walk(function, cst.Assign)
                    if rate.value in {dotted(target.target) for target in assign.targets}
                ]
            for value in values:
                if value not in seen:
                    seen.add(value)
                    yield from _scaled(source, value)


def _scaled(source: Source, node: cst.CSTNode) -> list[Found]:
    done = api_calls(source, node, "scale_lr")
    scaled = {call.args[0].value for call in done if call.args}
    rates = (rate for rate in _initial_rates(node) if rate not in scaled)
    return [*done, *(wrap(source, rate, "scale_lr") for rate in rates)]


def _initial_rates(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    if _key(node) == "initial" and _key(node.value) == "learning_rate":
        yield node
        return
    for child in children(node):
        yield from _initial_rates(child)


def _key(node: cst.CSTNode) -> str:
    """Return the x of `params["x"]` and of `params.x`."""
    return node.attr.value if isinstance(node, cst.Attribute) else key_of(node)


def _batch_means(source: Source, module: cst.Module) -> Iterator[Found]:
    """`alpha / q.abs().mean().detach()`, TD3-BC's weight of the Q-values, becomes
    `alpha / DDPUtils.over_ranks(q.abs().mean().detach())`.
    """
    for division in walk(module, cst.BinaryOperation):
        is_division = isinstance(division.operator, cst.Divide)
        if not is_division or "alpha" not in (_key(division.left), dotted(division.left)):
            continue
        if source.is_api(division.right, "over_ranks"):
            yield division.right
        elif _is_mean_of_absolute(division.right):
            yield wrap(source, division.right, "over_ranks")
        else:
            why = (
                "alpha is divided by something other than q.abs().mean().detach(): if that is a "
                "mean over the batch, each rank divides by its own batch's"
            )
            yield unrecognised(source, division, why, blocks=False)


def _is_mean_of_absolute(node: cst.BaseExpression) -> bool:
    """Return whether it is `q.abs().mean()` with a `.detach()` somewhere after q."""
    methods = []
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.args:
        methods.insert(0, node.func.attr.value)
        node = node.func.value
    last = [name for name in methods if name != "detach"][-2:]
    return last == ["abs", "mean"] and "detach" in methods


FIXERS = {
    # The one place where every rank stands with model and data made.
    "epochs": Fixer(
        "epoch loop",
        TRAIN_SCRIPTS,
        _loop,
        "write the epoch loop as: for epoch in DDPUtils.epochs(range(...), model)",
        within="def train",
        required=True,
    ),
    # Kept with the run's state.
    "restored": Fixer(
        "best so far",
        TRAIN_SCRIPTS,
        _first_values,
        'write the first value as best_valid_loss = DDPUtils.restored("best_valid_loss", None)',
        within="def train",
        words=("def train(", "best_"),
        done=("restored",),
        missing=f"train() has no variable {', '.join(BEST)}: a resumed run forgets the best so far",
    ),
    # Where the optimizer is made: scaled as the plan says.
    "scale_lr": Fixer(
        "learning rate",
        ("utils/torch_utils.py",),
        _rates,
        "pass the initial learning rate through DDPUtils.scale_lr(lr)",
        within="def optimizer_from_optim_params",
        required=True,
    ),
    # CQL makes those of its two weights by hand.
    "own_optimizer_lr": Fixer(
        "learning rate",
        ("algo/*.py",),
        _own_rates,
        "pass the initial learning rate through DDPUtils.scale_lr(lr)",
        words=("lr=", "learning_rate"),
        missing="no optimizer of torch is made with a learning rate of optim_params",
    ),
    # A statistic of the rank's batch weighs its loss.
    "over_ranks": Fixer(
        "batch mean",
        ("algo/*.py",),
        _batch_means,
        "write it as alpha / DDPUtils.over_ranks(q.abs().mean().detach())",
        words=("alpha", "abs(", "mean("),
        missing="no weight of a loss is alpha divided by a mean over the batch",
    ),
}
