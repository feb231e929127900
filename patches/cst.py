"""What fixers share: finding functions and calls, and the three forms of edit (decorate, wrap,
rename).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Union

import libcst as cst

from robomimic_ddp.patches.outcomes import (
    AlreadyApplied,
    Applied,
    Edit,
    NotPresent,
    Outcome,
    Unrecognised,
)
from robomimic_ddp.patches.source import Source, walk

TRAIN_SCRIPTS = ("scripts/train*.py",)
Definition = Union[cst.FunctionDef, cst.ClassDef]


def definition(source: Source, name: str) -> Definition | None:
    """The function or class `name` at the file's top level; the last one, as Python sees it."""
    found = None
    for statement in source.module.body:
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) and statement.name.value == name:
            found = statement
    return found


def parameters(function: cst.FunctionDef) -> list[str]:
    """Names of all parameters that a caller may name, in order."""
    params = function.params
    return [
        param.name.value
        for param in (*params.posonly_params, *params.params, *params.kwonly_params)
    ]


def calls(source: Source, node: cst.CSTNode, *qualified: str) -> Iterator[cst.Call]:
    """Calls at or under `node` of a function whose resolved name is one of `qualified`."""
    for call in walk(node, cst.Call):
        if source.resolves(call.func, *qualified):
            yield call


def api_calls(source: Source, node: cst.CSTNode, function: str) -> list[cst.Call]:
    """Calls of `DDPUtils.<function>` at or under `node`."""
    return [call for call in walk(node, cst.Call) if source.is_api(call, function)]


def argument(call: cst.Call, position: int, keyword: str) -> cst.BaseExpression | None:
    """The value given to a parameter by position or by keyword, or None."""
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg.value
        if arg.keyword is None and index == position:
            return arg.value
    return None


def keyword(name: str, value: str) -> cst.Arg:
    """The argument `name=value`, written without spaces."""
    no_space = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(cst.parse_expression(value), keyword=cst.Name(name), equal=no_space)


def api_name(source: Source, function: str) -> cst.Attribute:
    """`DDPUtils.<function>` under the alias of this file."""
    return cst.Attribute(cst.Name(source.alias), cst.Name(function))


def decorate(
    source: Source, name: str, function: str, arguments: str = "", kind: type = cst.FunctionDef
) -> Outcome:
    """Puts `@DDPUtils.<function>` (with `arguments`, if any) on the top-level definition `name`.

    It becomes the outermost decorator. A missing definition is `NotPresent`.
    """
    node = definition(source, name)
    word = "class" if kind is cst.ClassDef else "function"
    if not isinstance(node, kind):
        return NotPresent(f"no {word} {name} at top level")
    if any(source.is_api(decorator.decorator, function) for decorator in node.decorators):
        return AlreadyApplied((node,))
    expression = api_name(source, function)
    if arguments:
        expression = cst.Call(expression, [keyword(*arguments.split("="))])

    def change(updated: Definition) -> Definition:
        return updated.with_changes(decorators=[cst.Decorator(expression), *updated.decorators])

    return Applied((Edit(node, change),))


def wrap(source: Source, node: cst.BaseExpression, function: str, *more: str) -> Edit:
    """`node` becomes `DDPUtils.<function>(node, *more)`, where `more` is source text of names.

    Parentheses around an operation become the call's, or stay outside where a keyword touches them
    (`if(a):`).
    """
    touched = source.before(node).isalnum()

    def change(updated: cst.BaseExpression) -> cst.Call:
        extra = [cst.Arg(cst.parse_expression(text)) for text in more]
        outside: dict[str, Any] = {}
        if touched:
            outside = {"lpar": updated.lpar, "rpar": updated.rpar}
        if touched or _has_plain_parentheses(updated):
            updated = updated.with_changes(lpar=(), rpar=())
        return cst.Call(api_name(source, function), [cst.Arg(updated), *extra], **outside)

    return Edit(node, change)


def _has_plain_parentheses(node: cst.BaseExpression) -> bool:
    """An operation in one pair, with nothing between it and them (a comment, a line's end)."""
    if not isinstance(node, (cst.Comparison, cst.BooleanOperation)) or len(node.lpar) != 1:
        return False
    inside = (node.lpar[0].whitespace_after, node.rpar[0].whitespace_before)
    return all(isinstance(space, cst.SimpleWhitespace) and not space.value for space in inside)


def rename(source: Source, call: cst.Call, function: str) -> Edit:
    """The call goes to `DDPUtils.<function>`; its arguments and their layout stay."""

    def change(updated: cst.Call) -> cst.Call:
        return updated.with_changes(func=api_name(source, function))

    return Edit(call, change)


def settle(edits: list[Edit], done: list[cst.CSTNode], reason: str) -> Outcome:
    """The outcome of a construct that may occur several times: edits left to make, all made, or
    none there.
    """
    if edits:
        return Applied(tuple(edits))
    return AlreadyApplied(tuple(done)) if done else NotPresent(reason)


def train_function(source: Source) -> cst.FunctionDef | None:
    """The host's `train(config, device, ...)` at top level, or None."""
    node = definition(source, "train")
    return node if isinstance(node, cst.FunctionDef) else None


def unrecognised(source: Source, node: cst.CSTNode, why: str) -> Unrecognised:
    """`Unrecognised` at the line of `node`; what to do by hand is the fixer's own."""
    return Unrecognised(source.line(node), why)
