"""A language model that a file loads while it is imported: loaded at its first use.

It would be loaded by every process, wanted or not, before a rank has its device.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import api_calls, settle, wrap
from robomimic_ddp.patches.outcomes import Fixer, Outcome
from robomimic_ddp.patches.source import Source, walk


def fix(source: Source) -> Outcome:
    """`AutoModel.from_pretrained(` at the file's top level becomes
    `DDPUtils.language_model(AutoModel.from_pretrained)(`; tokenizers stay.
    """
    edits, done = [], []
    for call in _top_level_calls(source.module):
        if _is_model(source, call.func):
            edits.append(wrap(source, call.func, "language_model"))
        elif api_calls(source, call.func, "language_model"):
            done.append(call)
    return settle(edits, done, "no language model is loaded while the file is imported")


def _is_model(source: Source, function: cst.BaseExpression) -> bool:
    if not isinstance(function, cst.Attribute) or function.attr.value != "from_pretrained":
        return False
    names = (name.split(".") for name in source.names(function))
    return any(name[0] == "transformers" and "Model" in name[-2] for name in names)


def _top_level_calls(module: cst.Module) -> Iterator[cst.Call]:
    for statement in module.body:
        if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            yield from walk(statement, cst.Call)


FIXER = Fixer(
    seam="language model",
    files=("algo/*.py", "utils/*.py"),
    words=("from_pretrained", "transformers"),
    fix=fix,
    by_hand="load it with DDPUtils.language_model(AutoModel.from_pretrained)(...)",
    required=False,
)
