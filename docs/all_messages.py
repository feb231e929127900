"""The page of every message, read from the source, so that none can be missing."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import robomimic_ddp
from robomimic_ddp import errors

HEAD = """# Every message

All messages of robomimic-ddp as they are written in its source, `…` in place of names and
numbers: paste a part of yours into the search. Each says what was found, what was expected and
what to do; [troubleshooting](troubleshooting.md) has those that need more words, and those of
torch and NCCL.

"""
SPOKEN = ("warning: ", "note: ")
"""How lines begin that are printed while a job runs."""
_SHORTEST, _SHORTEST_OF_ERRORS = 25, 12


class Message(NamedTuple):
    """`kind`: the error's class, or "Printed" (line 0); `text` with "…" for what varies."""

    kind: str
    text: str
    file: str
    line: int


def kinds() -> dict[str, str]:
    """Name -> meaning of every error class meant for users."""
    found = {
        name: one
        for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, errors.RobomimicDDPError)
    }
    return {name: (one.__doc__ or "").split("\n\n")[0] for name, one in found.items()}


@lru_cache(maxsize=1)
def messages() -> tuple[Message, ...]:
    """Every message of the package, in the order of its files."""
    package = Path(robomimic_ddp.__file__).parent
    files = {path for folder in (package, package / "patches") for path in folder.rglob("*.py")}
    found = []
    for path in sorted(files):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(package).as_posix()
        found += (Message(kind, text, name, line) for kind, text, line in _of(tree))
    return tuple(found)


def page() -> str:
    """The page, in Markdown: a section for each kind of error."""
    told, parts = messages(), [HEAD]
    for kind, meaning in {**kinds(), "Printed": "Lines that are printed."}.items():
        own = sorted({one.text for one in told if one.kind == kind})
        if own:
            lines = "".join(f"- `` {text} ``\n" for text in own)
            parts.append(f"## {kind}\n\n{' '.join(meaning.split())}\n\n{lines}\n")
    return "".join(parts).rstrip() + "\n"


def _of(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    known, made_by = kinds(), {}
    functions = {one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    yield from (("Printed", text, 0) for text in _texts(tree) if text.startswith(SPOKEN))
    warnings = (call for call, _ in _calls(tree, tree) if getattr(call.func, "id", "") == "warn")
    yield from (("Printed", f"warning: {text}", 0) for call in warnings for text in _texts(call))
    for call, function in _calls(tree, tree):
        kind = getattr(call.func, "id", None)
        if kind in known and call.args:
            said, helper = call.args[0], _called(call.args[0], functions)
            texts = list(_texts(said, _SHORTEST_OF_ERRORS)) + (
                list(_texts(helper)) if helper else []
            )
            yield from ((kind, text, call.lineno) for text in texts or _texts(function))
            made_by[getattr(function, "name", "")] = kind
    for call, _ in _calls(tree, tree):
        kind = made_by.get(getattr(call.func, "id", None))
        if kind is not None:  # a function that ends a message, given its beginning
            for said in call.args:
                yield from ((kind, text, call.lineno) for text in _texts(said))


def _called(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> ast.FunctionDef | None:
    """The function of the same module that an expression calls for its text."""
    return functions.get(getattr(getattr(node, "func", None), "id", ""))


def _calls(node: ast.AST, function: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Every call, with the function that it stands in."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        function = node
    if isinstance(node, ast.Call):
        yield node, function
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, function)


def _texts(node: ast.AST, shortest: int = _SHORTEST) -> Iterator[str]:
    """The sentences in an expression, or in a function but for its docstring."""
    body = list(ast.iter_child_nodes(node)) if not isinstance(node, ast.JoinedStr) else []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
        body.remove(node.body[0])
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        text = _text(node)
        if len(text) >= shortest and " " in text:
            yield text
    for child in body:
        yield from _texts(child, shortest)


def _text(node: ast.AST) -> str:
    """The text of a string, "…" for each value in it, on one line."""
    if isinstance(node, ast.Constant):
        parts = [node.value if isinstance(node.value, str) else ""]
    else:
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
    return " ".join("".join(parts).split()).replace("``", "`")
