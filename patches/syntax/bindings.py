"""What a file's names stand for where its imports alone tell, without LibCST's slower scopes."""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterator

from robomimic_ddp.patches.syntax.python import imported_names

_BUILTINS = frozenset(dir(builtins))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Bindings:
    """Built from a file's syntax tree."""

    def __init__(self, tree: ast.Module) -> None:
        self._imported: dict[str, set[str]] = defaultdict(set)
        for name, target in imported_names(tree):
            self._imported[name].add(target)
        self._others: set[str] = set()
        self._others_at_top: set[str] = set()
        self._visit(tree, at_top=True)

    def _visit(self, node: ast.AST, at_top: bool) -> None:
        names = set(_bound(node))
        self._others |= names
        if at_top or isinstance(node, (ast.Global, ast.Nonlocal, ast.ImportFrom)):
            self._others_at_top |= names
        within = at_top and not isinstance(node, _FUNCTIONS)
        for child in ast.iter_child_nodes(node):
            self._visit(child, within)

    def is_imported(self, name: str) -> bool:
        """Return whether an import anywhere in the file binds `name`."""
        return name in self._imported

    def name(self, text: str) -> str | None:
        """Return the qualified name of a dotted one ("nn.Linear": "torch.nn.Linear"); None where it
        takes scopes to tell. What nothing binds is a builtin or stands for itself; what functions
        bind, each for itself, is "<locals>." and its name.
        """
        root, dot, rest = text.partition(".")
        targets = self._imported.get(root, set())
        if root in self._others:
            is_local = not targets and root not in _BUILTINS and root not in self._others_at_top
            return f"<locals>.{text}" if is_local else None
        if len(targets) > 1:
            return None
        if targets:
            return f"{next(iter(targets))}{dot}{rest}"
        return f"builtins.{text}" if root in _BUILTINS else text


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield names that `node` binds or unbinds in some scope, other than by an absolute import."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from node.names
    elif isinstance(node, ast.ImportFrom) and node.level:
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.ExceptHandler) or type(node).__name__.startswith("Match"):
        names = (getattr(node, "name", None), getattr(node, "rest", None))
        yield from (name for name in names if name)
