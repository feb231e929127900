"""Python's own parser, for what LibCST would be slow or less clear at."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence

API_MODULE = "robomimic_ddp.api"


def syntax_tree(data: bytes, path: str = "<host>") -> ast.Module:
    """Return the tree of `data`, without warnings of the host's own faults (invalid escapes).
    Raises SyntaxError, or ValueError for bytes that cannot be source text.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(data, path)
        except MemoryError as error:  # the parser's word for it
            raise SyntaxError("it is nested too deeply") from error


def parsed(data: bytes | None) -> ast.Module:
    """Return the tree of a host's file; an empty one if there is no file or it does not parse."""
    try:
        return syntax_tree(data or b"")
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def aliases(tree: ast.AST, package: str = "") -> dict[str, str]:
    """Return a dictionary: each name in the file -> what imports anywhere in it bind the name to.
    Relative imports count where the file's `package` is given ("robomimic.scripts").
    """
    return dict(imported_names(tree, package.split(".") if package else []))


def imported_names(tree: ast.AST, package: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield (name in the file, what it stands for) of each import, as `aliases` has them."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        level = getattr(node, "level", 0)
        if level <= len(package):
            above = package[: len(package) - level + 1] if level else ()
            for name, stands_for in _stands_for(node):
                yield name, ".".join([*above, stands_for.lstrip(".")])


def _stands_for(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield (name in the file, what it stands for) of one import: "..utils.x" if it is relative."""
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            module = "." * statement.level + (f"{statement.module}." if statement.module else "")
            yield alias.asname or alias.name, module + alias.name
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            root = alias.name.partition(".")[0]
            yield root, root


def resolved(node: ast.AST, names: Mapping[str, str]) -> str:
    """Return the dotted name that `node` stands for through imports; "" where no import binds
    it.
    """
    base, _, rest = dotted(node).partition(".")
    return ".".join(filter(None, (names[base], rest))) if base in names else ""


def api_names(data: bytes) -> tuple[str, ...]:
    """Return the names of robomimic_ddp.api that a file with these bytes uses; () if it does not
    parse.
    """
    tree = parsed(data)
    names, api = aliases(tree), f"{API_MODULE}."
    used = {resolved(node, names) for node in ast.walk(tree)} | set(names.values())
    functions = (name[len(api) :].partition(".")[0] for name in used if name.startswith(api))
    return tuple(sorted(set(functions)))


def last_name(node: ast.AST) -> str:
    """Return the function that a call names last ("load" of `json.load()`); "" for anything
    else.
    """
    return dotted(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def dotted(node: ast.AST) -> str:
    """Return the text of a name or a chain of attributes ("self.nets"), else ""."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""
