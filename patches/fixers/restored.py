"""The best-so-far values of `train()`: kept with the run's state, and restored when it goes on."""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS, api_name, settle, train_function
from robomimic_ddp.patches.imports import dotted
from robomimic_ddp.patches.outcomes import Edit, Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk

NAMES = ("best_valid_loss", "best_return", "best_success_rate")


def fix(source: Source) -> Outcome:
    """`best_valid_loss = None` becomes `best_valid_loss = DDPUtils.restored("best_valid_loss",
    None)`, before the epoch loop; likewise best_return and best_success_rate.
    """
    train = train_function(source)
    if train is None:
        return NotPresent("no function train at top level")
    edits, done = [], []
    for assign, name in _first_values(train):
        if source.is_api(assign.value, "restored"):
            done.append(assign)
        else:
            edits.append(_restore(source, assign.value, name))
    return settle(
        edits,
        done,
        f"train() has no variable {', '.join(NAMES)}: when a run goes on, the best so far begins "
        "anew",
    )


def _first_values(train: cst.FunctionDef) -> list[tuple[cst.Assign, str]]:
    """Assignments of one of the names before the loop that runs epochs, outside of any condition:
    a host's own `if resume:` stays as it is.
    """
    found = []
    for statement in train.body.body:
        if isinstance(statement, cst.For) and _runs_epochs(statement):
            break
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for assign in statement.body:
            if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
                name = dotted(assign.targets[0].target)
                if name in NAMES:
                    found.append((assign, name))
    return found


def _runs_epochs(loop: cst.For) -> bool:
    names = (dotted(call.func) for call in walk(loop, cst.Call))
    return any(name.rpartition(".")[2].startswith("run_epoch") for name in names)


def _restore(source: Source, value: cst.BaseExpression, name: str) -> Edit:
    def change(updated: cst.BaseExpression) -> cst.Call:
        text = cst.SimpleString(f'"{name}"')
        return cst.Call(api_name(source, "restored"), [cst.Arg(text), cst.Arg(updated)])

    return Edit(value, change)


FIXER = Fixer(
    seam="best so far",
    files=TRAIN_SCRIPTS,
    words=("def train(", "best_"),
    fix=fix,
    by_hand='write the first value as best_valid_loss = DDPUtils.restored("best_valid_loss", None)',
    required=False,
)
