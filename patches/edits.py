"""What fixers share: finding functions and calls, and the forms of edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import libcst as cst

from robomimic_ddp.patches.outcomes import Found, Unrecognised
from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.source import Edit, Source, children, walk

Definition = cst.FunctionDef | cst.ClassDef


def definition(source: Source, header: str) -> Definition | None:
    """Return what "def name" or "class name" is at the file's top level: the last one, as Python
    sees it. None where there is none, or where the last one is of the other kind.
    """
    word, name = header.split()
    last = None
    for statement in source.module.body:
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) and statement.name.value == name:
            last = statement
    return last if isinstance(last, cst.FunctionDef if word == "def" else cst.ClassDef) else None


def calls(source: Source, node: cst.CSTNode, *qualified: str) -> Iterator[cst.Call]:
    """Return the calls at or under `node` of functions whose resolved name is in `qualified`."""
    return (call for call in source.calls(node) if source.resolves(call.func, *qualified))


def api_calls(source: Source, node: cst.CSTNode, function: str) -> list[cst.Call]:
    """Return the calls of `DDPUtils.<function>` at or under `node`."""
    return [call for call in source.calls(node) if source.is_api(call, function)]


def run_epoch_calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls of `run_epoch`, or of a host's further kind of it (`run_epoch_mt`)."""
    for call in walk(node, cst.Call):
        if dotted(call.func).rpartition(".")[2].startswith("run_epoch"):
            yield call


def last_names(source: Source, call: cst.Call) -> set[str]:
    """Return the last names of what the called function may be: {"config_factory"}."""
    return {name.rpartition(".")[2] for name in source.names(call.func)}


def names_in(*nodes: cst.CSTNode) -> set[str]:
    """Return the names at or under `nodes`, those of attributes and keywords too."""
    return {name.value for node in nodes for name in walk(node, cst.Name)}


def references(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield names and whole chains of attributes: `torch.nn.DataParallel`, without its `torch`."""
    if dotted(node):
        yield node
    else:
        for child in [node.value] if isinstance(node, cst.Attribute) else children(node):
            yield from references(child)


def argument(call: cst.Call, position: int, keyword: str) -> cst.BaseExpression | None:
    """Return the value given to a parameter by position or by keyword, or None."""
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg.value
        if arg.keyword is None and index == position:
            return arg.value
    return None


def text_of(node: cst.CSTNode | None) -> str:
    """Return the value of a string that is written out, else ""."""
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""


def key_of(node: cst.CSTNode) -> str:
    """Return the x of `params["x"]`, else ""."""
    index = node.slice[0].slice if isinstance(node, cst.Subscript) else None
    return text_of(index.value) if isinstance(index, cst.Index) else ""


def keyword(name: str, value: str) -> cst.Arg:
    """Return the argument `name=value`, written without spaces."""
    no_space = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(cst.parse_expression(value), keyword=cst.Name(name), equal=no_space)


def api_name(source: Source, function: str) -> cst.Attribute:
    """`DDPUtils.<function>` under the alias of this file."""
    return cst.Attribute(cst.Name(source.alias), cst.Name(function))


def extended(call: cst.Call, arguments: Sequence[cst.Arg]) -> cst.Call:
    """Return the call with further arguments, laid out as those it has: one a line, or all on
    one.
    """
    if not call.args:
        return call.with_changes(args=arguments)
    between = call.args[0].comma
    if len(call.args) == 1:
        between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = call.args[-1]
    *added, end = (argument.with_changes(comma=between) for argument in arguments)
    end = end.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    joined = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*call.args[:-1], joined, *added, end])


def decorate(source: Source, node: Definition, decorator: str) -> Edit | Definition:
    """Puts `@DDPUtils.<decorator>` outermost on `node`; `node` itself where it has it already."""
    function, _, arguments = decorator.rstrip(")").partition("(")
    if any(source.is_api(decorator.decorator, function) for decorator in node.decorators):
        return node
    expression = api_name(source, function)
    if arguments:
        expression = cst.Call(expression, [keyword(*arguments.split("="))])
    added = cst.Decorator(expression)
    return Edit(node, lambda new: new.with_changes(decorators=[added, *new.decorators]))


def renamed(api: str, *qualified: str) -> Callable[[Source, cst.CSTNode], Iterator[Found]]:
    """Return a `find`: calls of `qualified` become calls of `DDPUtils.<api>`."""
    return lambda source, node: (
        rename(source, call, api) for call in calls(source, node, *qualified)
    )


def rename(source: Source, call: cst.Call, function: str) -> Edit:
    """Send the call to `DDPUtils.<function>`; its arguments and their layout stay."""
    return Edit(call, lambda updated: updated.with_changes(func=api_name(source, function)))


def put_after(source: Source, node: cst.BaseExpression, function: str, first: str) -> Edit:
    """`node` becomes `DDPUtils.<function>(first, node)`, where `first` is source text."""
    before = cst.Arg(cst.parse_expression(first))
    return Edit(
        node, lambda updated: cst.Call(api_name(source, function), [before, cst.Arg(updated)])
    )


def wrap(source: Source, node: cst.BaseExpression, function: str, *names: str) -> Edit:
    """`node` becomes `DDPUtils.<function>(node, *names)`, where `names` are source text. Its
    parentheses become the call's, or stay outside where a keyword touches them (`if(a):`).
    """
    touched = source.before(node).isalnum()

    def change(updated: cst.BaseExpression) -> cst.Call:
        extra = cst.ensure_type(cst.parse_expression(f"f({', '.join(names)})"), cst.Call).args
        outside: dict[str, Any] = {}
        if touched:
            outside = {"lpar": updated.lpar, "rpar": updated.rpar}
        if touched or _has_plain_parentheses(updated):
            updated = updated.with_changes(lpar=(), rpar=())
        return cst.Call(api_name(source, function), [cst.Arg(updated), *extra], **outside)

    return Edit(node, change)


def _has_plain_parentheses(node: cst.BaseExpression) -> bool:
    """Return whether `node` is an operation in one pair of parentheses, with nothing between it
    and them (a comment, a line's end).
    """
    if not isinstance(node, (cst.Comparison, cst.BooleanOperation)) or len(node.lpar) != 1:
        return False
    inside = (node.lpar[0].whitespace_after, node.rpar[0].whitespace_before)
    return all(isinstance(space, cst.SimpleWhitespace) and not space.value for space in inside)


def unrecognised(source: Source, node: cst.CSTNode, why: str, blocks: bool = True) -> Unrecognised:
    """`Unrecognised` at the line of `node`; what to do by hand is the fixer's own."""
    return Unrecognised(source.line(node), why, blocks=blocks)
