"""The epoch loop of `train()`: the one place where every rank stands with model and data made."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS, argument, train_function, unrecognised, wrap
from robomimic_ddp.patches.imports import dotted
from robomimic_ddp.patches.outcomes import AlreadyApplied, Applied, Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk


def fix(source: Source) -> Outcome:
    """`for epoch in range(...)` becomes `for epoch in DDPUtils.epochs(range(...), model)`.

    The loop is the outermost one that calls `run_epoch`; the model is what it hands to `run_epoch`.
    """
    train = train_function(source)
    if train is None:
        return NotPresent("no function train at top level")
    loop = next((loop for loop in walk(train, cst.For) if any(_run_epoch_calls(loop))), None)
    if loop is None:
        where = next(_run_epoch_calls(train), train)
        return unrecognised(
            source, where, "train() has no `for epoch in ...` loop that calls run_epoch"
        )
    if source.is_api(loop.iter, "epochs"):
        return AlreadyApplied((loop,))
    models = {dotted(argument(call, 0, "model") or loop) for call in _run_epoch_calls(loop)}
    if len(models) != 1 or "" in models:
        return unrecognised(source, loop, "run_epoch is not handed one model by name")
    if not isinstance(loop.iter, (cst.Call, cst.Name)):
        return unrecognised(source, loop, "the loop does not run over a range(...)")
    return Applied((wrap(source, loop.iter, "epochs", models.pop()),))


def _run_epoch_calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    """Calls of it, or of a host's further kind of epoch, such as `run_epoch_mt`."""
    return (
        call
        for call in walk(node, cst.Call)
        if dotted(call.func).rpartition(".")[2].startswith("run_epoch")
    )


FIXER = Fixer(
    seam="epoch loop",
    files=TRAIN_SCRIPTS,
    words=("def train(",),
    fix=fix,
    by_hand="write the epoch loop as: for epoch in DDPUtils.epochs(range(...), model)",
)
