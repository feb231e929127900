"""The import through which edited lines reach us, and where it stands in a host's file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from robomimic_ddp.patches.syntax.python import API_MODULE

API_ALIAS = "DDPUtils"
_SLOW = {"torch", "torchvision", "tensorflow", "transformers", "robomimic"}
"""Packages whose import takes seconds."""


def dotted(node: cst.CSTNode | None) -> str:
    """Return the text of a name or a chain of attributes ("torch.nn.Linear"), else ""."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""


def top_level_imports(module: cst.Module) -> Iterator[cst.ImportAlias]:
    """Yield what imports at the file's top level import, `*` left out."""
    for line in module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, (cst.Import, cst.ImportFrom)):
                yield from aliases(statement)


def aliases(statement: cst.Import | cst.ImportFrom) -> Sequence[cst.ImportAlias]:
    """Return what the statement imports, `*` left out."""
    return () if isinstance(statement.names, cst.ImportStar) else statement.names


def with_api_import(module: cst.Module) -> cst.Module:
    """`module` with our import after its last robomimic import at top level, else after its last
    import or docstring. It stands above the first function or class, whose decorators may need it,
    and above the first line that uses it. In a program it is above the first import that takes
    seconds, so that mistakes on the command line are shown at once.
    """
    after = {"robomimic": -1, "import": -1, "head": -1}
    before = []
    for index, line in enumerate(module.body):
        if isinstance(line, (cst.FunctionDef, cst.ClassDef)) or _uses_api(module, line):
            break
        roots = _roots(line)
        if roots:
            kind = "robomimic" if "robomimic" in roots else "import"
            after["head" if roots == {"__future__"} else kind] = index
        elif index == 0 and _is_text(line):
            after["head"] = index
        if roots & _SLOW:
            before.append(index)
    position = next((index for index in after.values() if index >= 0), -1) + 1
    if before and any(map(_is_main_guard, module.body)):
        position = before[0]
    # Built, not parsed: a parsed "\n" would stay one in a file of "\r\n".
    package, name = API_MODULE.split(".")
    alias = cst.ImportAlias(
        cst.Attribute(cst.Name(package), cst.Name(name)), asname=cst.AsName(cst.Name(API_ALIAS))
    )
    statement = cst.SimpleStatementLine([cst.Import([alias])])
    return module.with_changes(body=[*module.body[:position], statement, *module.body[position:]])


def _roots(line: cst.BaseStatement) -> set[str]:
    """Return the packages that a line imports from: "robomimic" for a relative import."""
    roots = set()
    for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
        if isinstance(statement, cst.Import):
            roots |= {dotted(alias.name).split(".")[0] for alias in statement.names}
        elif isinstance(statement, cst.ImportFrom):
            root = dotted(statement.module).split(".")[0]
            roots.add("robomimic" if statement.relative else root)
    return roots


def _uses_api(module: cst.Module, line: cst.BaseStatement) -> bool:
    """Return whether an edited line is in it."""
    return not _is_text(line) and f"{API_ALIAS}." in module.code_for_node(line)


def _is_text(line: cst.BaseStatement) -> bool:
    """Return whether it is a docstring."""
    first = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    return isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)


def _is_main_guard(line: cst.BaseStatement) -> bool:
    """Return whether it is `if __name__ == "__main__":`."""
    test = line.test if isinstance(line, cst.If) else None
    return isinstance(test, cst.Comparison) and dotted(test.left) == "__name__"
