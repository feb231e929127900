"""A handler in `main()` that prints the error of `train()` and lets the process exit 0.

One failed rank would leave the others waiting, and a launcher would call the job a
success.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import calls, unrecognised
from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS
from robomimic_ddp.patches.outcomes import Fixer, Found, NotPresent
from robomimic_ddp.patches.syntax.source import Edit, Source, walk

_TRAINS_NOTHING = {*sys.stdlib_module_names, "builtins", "h5py", "numpy", "torch", "wandb"}
"""Packages of which nothing that main() calls is the training."""


def find(source: Source, main: cst.FunctionDef) -> list[Found]:
    """`raise` becomes the last line of each handler of every error in `main`, where the training
    may be what fails: a host's way around a missing git or wandb stays.
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
    for attempt in walk(main, cst.Try):
        called = (name for call in walk(attempt.body, cst.Call) for name in source.names(call.func))
        if not all("." in name and name.split(".")[0] in _TRAINS_NOTHING for name in called):
            yield from attempt.handlers


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
