"""A handler in `main()` that prints the error of `train()` and lets the process exit 0.

One failed rank would leave the others waiting, and a launcher would call the job a
success.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import calls, definition, run_epoch_calls, unrecognised
from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS
from robomimic_ddp.patches.host.training_files import TRAIN
from robomimic_ddp.patches.outcomes import Fixer, Found, NotPresent
from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.source import Edit, Source, walk

_TRAINS_NOTHING = {*sys.stdlib_module_names, "builtins", "h5py", "numpy", "torch", "wandb"}
"""Packages of which nothing that main() calls is the training."""
_TRAINING = re.compile(r"\btrain\w*$|\b[Tt]rainer\.")
"""How a call that trains a policy is named, if no function of the file: `script.train_mt`."""


def find(source: Source, main: cst.FunctionDef) -> list[Found]:
    """`raise` becomes the last line of each handler of every error in `main`, where the training
    is what fails: a host's way around a missing git or wandb stays.
    """
    edits, done = [], []
    for handler in _handlers_of_training(source, main):
        if not _catches_all(source, handler):
            continue
        block = handler.body.body[-1] if isinstance(handler.body, cst.IndentedBlock) else None
        last = block.body[-1] if isinstance(block, cst.SimpleStatementLine) else block
        if isinstance(last, cst.Raise):
            done.append(handler)
        elif isinstance(last, (cst.Return, cst.Continue, cst.Break)):
            why = "the handler leaves before the error could be raised again"
            return [unrecognised(source, handler, why)]
        elif last is None:
            return [unrecognised(source, handler, "the handler is written on one line")]
        elif not any(calls(source, last, "sys.exit", "os._exit", "builtins.exit", "builtins.quit")):
            edits.append(Edit(handler, _with_raise))
    is_ours = any(source.is_api(item.decorator, "entry_point") for item in main.decorators)
    if done and not edits and not is_ours:
        return [NotPresent("the handler raises the error again by itself")]
    return [*edits, *done]


def _handlers_of_training(source: Source, main: cst.FunctionDef) -> Iterator[cst.ExceptHandler]:
    """Yield the handlers around the training; where no call in `main` is known to be that, those
    around each call that may be.
    """
    attempts = list(walk(main, cst.Try))
    training = [attempt for attempt in attempts if _trains(source, attempt.body)]
    if not training and not _trains(source, main):
        training = [attempt for attempt in attempts if _may_train(source, attempt.body)]
    for attempt in training:
        yield from attempt.handlers


def _trains(
    source: Source, node: cst.CSTNode, entered: frozenset[cst.CSTNode] = frozenset()
) -> bool:
    """Return whether the training is called at or under `node`, or in a function of the file that
    is called there. entered: the functions that need not be looked through again.
    """
    if any(run_epoch_calls(node)):
        return True
    for call in source.calls(node):
        name = dotted(call.func)
        function = definition(source, f"def {name}") if name else None
        if function is None:
            if any(map(_TRAINING.search, source.names(call.func))):
                return True
        elif name == TRAIN or (
            function not in entered and _trains(source, function, entered | {function})
        ):
            return True
    return False


def _may_train(source: Source, body: cst.BaseSuite) -> bool:
    called = (name for call in walk(body, cst.Call) for name in source.names(call.func))
    return not all("." in name and name.split(".")[0] in _TRAINS_NOTHING for name in called)


def _catches_all(source: Source, handler: cst.ExceptHandler) -> bool:
    kind = handler.type
    kinds = [element.value for element in kind.elements] if isinstance(kind, cst.Tuple) else [kind]
    every = ("builtins.Exception", "builtins.BaseException")
    return kind is None or any(source.resolves(exception, *every) for exception in kinds)


def _with_raise(handler: cst.ExceptHandler) -> cst.ExceptHandler:
    lines = [*handler.body.body, cst.SimpleStatementLine([cst.Raise()])]
    return handler.with_changes(body=handler.body.with_changes(body=lines))


FIXER = Fixer(
    "errors",
    TRAIN_SCRIPTS,
    find,
    "end the handler in main() with a bare `raise`",
    within="def main",
    words=("def main(", "except"),
    missing="no handler in main hides the error of train",
)
