"""A handler in `main()` that prints the error of `train()` and lets the process exit 0.

One failed rank would leave the others waiting for ever, and a launcher would call the job a
success.
"""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.cst import TRAIN_SCRIPTS, calls, definition, settle, unrecognised
from robomimic_ddp.patches.outcomes import Edit, Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk


def fix(source: Source) -> Outcome:
    """`raise` becomes the last line of each handler of every error in `main`."""
    main = definition(source, "main")
    if not isinstance(main, cst.FunctionDef):
        return NotPresent("no function main at top level")
    edits, done = [], []
    for handler in walk(main, cst.ExceptHandler):
        if not _catches_all(source, handler):
            continue
        last = _last_statement(handler)
        if isinstance(last, cst.Raise):
            done.append(handler)
        elif isinstance(last, (cst.Return, cst.Continue, cst.Break)):
            return unrecognised(
                source, handler, "the handler leaves before the error could be raised again"
            )
        elif last is None:
            return unrecognised(source, handler, "the handler is written on one line")
        elif not _exits(source, last):
            edits.append(Edit(handler, _with_raise))
    if (
        not edits
        and done
        and not any(source.is_api(item.decorator, "entry_point") for item in main.decorators)
    ):
        return NotPresent("the handler raises the error again by itself")
    return settle(edits, done, "no handler in main hides the error of train")


def _catches_all(source: Source, handler: cst.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = [handler.type]
    if isinstance(handler.type, cst.Tuple):
        types = [element.value for element in handler.type.elements]
    return any(
        source.resolves(kind, "builtins.Exception", "builtins.BaseException") for kind in types
    )


def _last_statement(handler: cst.ExceptHandler) -> cst.CSTNode | None:
    """The last statement of the handler's block; None if the block stands on the `except` line
    itself.
    """
    if not isinstance(handler.body, cst.IndentedBlock):
        return None
    last = handler.body.body[-1]
    return last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last


def _exits(source: Source, statement: cst.CSTNode) -> bool:
    return any(calls(source, statement, "sys.exit", "os._exit", "builtins.exit", "builtins.quit"))


def _with_raise(handler: cst.ExceptHandler) -> cst.ExceptHandler:
    statement = cst.SimpleStatementLine([cst.Raise()])
    return handler.with_changes(
        body=handler.body.with_changes(body=[*handler.body.body, statement])
    )


FIXER = Fixer(
    seam="errors",
    files=TRAIN_SCRIPTS,
    words=("def main(", "except"),
    fix=fix,
    by_hand="end the handler in main() with a bare `raise`",
    required=False,
)
