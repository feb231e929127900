"""One file of the host: parsed once, names resolved on demand, written back with our lines only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, ScopeProvider

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches.syntax.imports import (
    API_ALIAS,
    API_MODULE,
    dotted,
    top_level_imports,
    with_api_import,
)
from robomimic_ddp.patches.syntax.python import syntax_tree

Node = TypeVar("Node", bound=cst.CSTNode)


class SourceError(PatchError):
    """The file cannot be parsed or written back to the byte; `line` is 1-based, 0 if unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Edit:
    """One change to one node of a parsed file. `change` is given the node with the edits inside it
    made already, and returns what takes its place: edits may be nested.
    """

    node: cst.CSTNode
    change: Callable[[Any], cst.CSTNode]


class Source:
    """A parsed file. `path` is relative to the package folder; `traits` are the host's, `called`
    the functions of this file that the host's training functions call to run rollouts.
    """

    def __init__(
        self,
        path: str,
        data: bytes,
        traits: frozenset[str] = frozenset(),
        called: frozenset[str] = frozenset(),
    ) -> None:
        self.path = path
        self.data = data
        self.traits = traits
        self.called = called
        self.module = _parse(data)
        self.api_import = _api_import(self.module)
        self._metadata = MetadataWrapper(self.module, unsafe_skip_copy=True)
        self._calls: dict[cst.CSTNode, list[cst.Call]] = {}

    @cached_property
    def _positions(self):
        return self._metadata.resolve(PositionProvider)

    @cached_property
    def _scopes(self):
        return self._metadata.resolve(ScopeProvider)

    def calls(self, node: cst.CSTNode) -> list[cst.Call]:
        """Return the calls at or under `node`, which many fixers look through."""
        if node not in self._calls:
            self._calls[node] = list(walk(node, cst.Call))
        return self._calls[node]

    def line(self, node: cst.CSTNode) -> int:
        """1-based line on which `node` starts (a decorated function: the line of its `def`)."""
        return self._positions[node].start.line

    def before(self, node: cst.CSTNode) -> str:
        """Return the character before `node` and its parentheses in its line, or ""."""
        start = self._positions[node].start
        line = self._text[start.line - 1][: start.column]
        for _ in getattr(node, "lpar", ()):  # a position is that of what is in them
            line = line.rstrip().removesuffix("(")
        return line[-1:]

    @cached_property
    def _text(self) -> list[str]:
        text = self.data.decode(self.module.encoding)
        return re.split(r"\r\n?|\n", text)  # as LibCST counts lines

    def names(self, node: cst.CSTNode) -> frozenset[str]:
        """Dotted names that `node` may stand for, through imports and scopes:
        {"torch.nn.DataParallel"}. An unbound name stands for itself, another expression for
        nothing.
        """
        text = dotted(node)
        if not text:
            return frozenset()
        scope = self._scopes.get(node)
        names = {name.name for name in scope.get_qualified_names_for(node)} if scope else set()
        return frozenset(names or {text})

    def resolves(self, node: cst.CSTNode, *qualified: str) -> bool:
        """Return whether `node` is one of the `qualified` names under whatever alias the file
        uses.
        """
        # Resolving names is the slow part, and few need it.
        last = {name.rpartition(".")[2] for name in qualified}
        if isinstance(node, cst.Attribute) and node.attr.value not in last:
            return False
        if not any(name.encode() in self.data for name in last):
            return False
        return not self.names(node).isdisjoint(qualified)

    def is_api(self, node: cst.CSTNode, function: str) -> bool:
        """Return whether `node` is `DDPUtils.<function>`, or a call of it."""
        node = node.func if isinstance(node, cst.Call) else node
        return self.resolves(node, f"{API_MODULE}.{function}", f"{API_ALIAS}.{function}")

    @property
    def alias(self) -> str:
        """The name under which edited lines reach `robomimic_ddp.api`."""
        return self.api_import or API_ALIAS

    def render(self, edits: Iterable[Edit]) -> bytes:
        """Return the file's bytes after `edits`, with the import that they need."""
        module = self.module.visit(_Rewriter(self.module, edits))
        if self.api_import is None:
            module = with_api_import(module)
        data = module.bytes
        syntax_tree(data, self.path)  # an edit that does not compile is our bug
        return data


def walk(node: cst.CSTNode, kind: type[Node] | tuple[type[Node], ...]) -> Iterator[Node]:
    """All nodes of type `kind` at or under `node`, a node before what is in it."""
    left = [node]
    while left:
        node = left.pop()
        if _is_a(type(node), kind):
            yield node
        left += reversed(children(node))


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return what is in `node.children` except white space, without its visitor, which is slow."""
    children = []
    for name in _code_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, (list, tuple)):
            children += value
        elif _is_a(type(value), cst.CSTNode):
            children.append(value)
    return children


_is_a = cache(issubclass)  # asked once a type: theirs are abstract, and slow


@cache
def _code_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    blank = {"leading_lines", "lines_after_decorators", "header", "footer", "indent", "newline"}
    names = [field.name for field in fields(kind)]
    return tuple(name for name in names if name not in blank and "whitespace" not in name)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, module: cst.Module, edits: Iterable[Edit]) -> None:
        super().__init__()
        self._changes = defaultdict(list)
        for edit in edits:
            self._changes[edit.node].append(edit.change)
        self._visited: set[cst.CSTNode] = set()
        self._find_edits(module)

    def _find_edits(self, node: cst.CSTNode) -> bool:
        """Collect the nodes that are edited or have an edit inside: visiting all is slow."""
        is_inside = any([self._find_edits(child) for child in children(node)])
        if is_inside or node in self._changes:
            self._visited.add(node)
        return node in self._visited

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self._visited

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:
        for change in self._changes.get(original_node, ()):
            updated_node = change(updated_node)
        return updated_node


def _api_import(module: cst.Module) -> str | None:
    """Return the alias of `robomimic_ddp.api` if the file imports it at top level, else None."""
    for alias in top_level_imports(module):
        if alias.evaluated_name == API_MODULE and alias.evaluated_alias:
            return alias.evaluated_alias
        if API_ALIAS in (alias.evaluated_alias, alias.evaluated_name):
            raise SourceError(f"the name {API_ALIAS} already stands for another import", 1)
    return None


def _parse(data: bytes) -> cst.Module:
    try:
        syntax_tree(data)  # LibCST's own errors name a later line, and in harder words
        module = cst.parse_module(data)
    except SyntaxError as error:
        raise SourceError(f"it is not valid Python: {error.msg}", error.lineno or 0) from error
    except cst.ParserSyntaxError as error:
        raise SourceError(f"LibCST cannot parse it: {error.message}", error.raw_line) from error
    except (UnicodeDecodeError, LookupError, ValueError, RecursionError) as error:
        raise SourceError(f"it cannot be read as Python: {error}") from error
    if module.bytes != data:
        raise SourceError("it could not be written back byte for byte")
    return module
