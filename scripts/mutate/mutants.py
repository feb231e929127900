"""The mutants of a module, by mutmut's operators and four of ours.

Not mutated: type hints, docstrings, imports, decorators, assertions, errors that are raised, what
is printed, texts with blanks, __repr__ and the functions of TEXTS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators

CHECKOUT = Path(__file__).resolve().parents[2]
TEXTS = {
    *("__repr__", "describe", "_devices", "_not_called"),
    *("_other_model", "cells", "sentence", "_lost"),
}
"""Functions that make a text for people."""
SAYS = {"print", "say", "main_rank.say", "start.say", "warn", "_other_model", "warnings.warn"}
NEVER = {"len", "isinstance"}
HINTS = {"Callable", "Union"}
NOTHING = cst.parse_expression('__import__("contextlib").nullcontext()')


class Mutant(NamedTuple):
    """The module `path` (relative to the package) with `line` changed to `changed`."""

    path: str
    number: int
    line: str
    changed: str
    source: str

    @property
    def key(self) -> str:
        return f"{self.path}: {self.line} -> {self.changed}"


def drop_call(node: cst.Expr) -> Iterator[cst.CSTNode]:
    """A call whose result nobody takes is left out."""
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


def return_nothing(node: cst.Return) -> Iterator[cst.CSTNode]:
    """None in place of what is returned."""
    if node.value is not None and getattr(node.value, "value", "") not in ("None", "True", "False"):
        yield node.with_changes(value=cst.Name("None"))


def turn_condition(node: cst.If) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """The other branch is taken."""
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.test, cst.UnaryOperation(cst.Not(), test)


def drop_context(node: cst.WithItem) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """The block runs outside of its context manager."""
    yield node.item, NOTHING


OPERATORS = [
    *mutation_operators,
    (cst.Expr, drop_call),
    (cst.Return, return_nothing),
    (cst.If, turn_condition),
    (cst.WithItem, drop_context),
]


class Places(cst.CSTVisitor):
    """The nodes of a module that are mutated, in order."""

    def __init__(self) -> None:
        self.found: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if is_left_alone(node):
            return False
        self.found.append(node)
        return True


def is_left_alone(node: cst.CSTNode) -> bool:
    """Whether neither `node` nor what is in it is mutated."""
    if isinstance(node, cst.Lambda) and name_of(node.body) == "None":
        return True
    if isinstance(node, (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)):
        return True
    if isinstance(node, (cst.Raise, cst.Assert, cst.ConcatenatedString)):
        return True
    if isinstance(node, cst.FunctionDef):
        return node.name.value in TEXTS
    if isinstance(node, cst.Expr):
        return isinstance(node.value, cst.SimpleString)
    if isinstance(node, cst.If):
        return name_of(node.test) == "TYPE_CHECKING"
    if isinstance(node, cst.Assign):
        is_hint = isinstance(node.value, cst.Subscript) and name_of(node.value.value) in HINTS
        return is_hint or name_of(node.targets[0].target) == "__all__"
    if isinstance(node, cst.Call):
        return name_of(node.func) in SAYS | NEVER
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.FormattedString):
        texts = (part for part in node.parts if isinstance(part, cst.FormattedStringText))
        return any(" " in part.value for part in texts)
    return False


def name_of(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return f"{name_of(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def mutants_of(path: str) -> list[Mutant]:
    """All mutants of a module of the package, each once."""
    source = (CHECKOUT / "robomimic_ddp" / path).read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source))
    spans = wrapper.resolve(WhitespaceInclusivePositionProvider)
    places, starts, found = Places(), [0], {}
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    wrapper.module.visit(places)
    for place in places.found:
        for node, new in changes_of(place):
            span = spans[node]
            begin = starts[span.start.line - 1] + span.start.column
            end = starts[span.end.line - 1] + span.end.column
            changed = source[:begin] + wrapper.module.code_for_node(new) + source[end:]
            if changed == source or changed in found or not compiles(changed):
                continue
            first = starts[source.count("\n", 0, begin)]
            last = source.find("\n", end)
            row = source.count("\n", 0, begin) + 1
            line = one_line(source[first:last])
            more = one_line(changed[first : last + len(changed) - len(source)])
            found[changed] = Mutant(path, row, line, more, changed)
    return list(found.values())


def changes_of(place: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    for kind, operator in OPERATORS:
        if isinstance(place, kind):
            made = list(operator(place))
            if isinstance(place, cst.SimpleString):
                made = made[:1]  # in capitals it is another text in the same way
            yield from (one if isinstance(one, tuple) else (place, one) for one in made)


def one_line(text: str) -> str:
    return " ".join(text.split())


def compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True
