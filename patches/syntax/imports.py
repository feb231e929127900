"""The import through which edited lines reach us, and where it stands in a host's file."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.syntax.python import API_MODULE

API_ALIAS = "DDPUtils"


def dotted(node: cst.CSTNode | None) -> str:
    """The text of a name or a chain of attributes ("torch.nn.Linear"), else ""."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""


def top_level_imports(module: cst.Module) -> Iterator[cst.ImportAlias]:
    """What imports at the file's top level import, `*` left out."""
    for line in module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            is_import = isinstance(statement, (cst.Import, cst.ImportFrom))
            if is_import and not isinstance(statement.names, cst.ImportStar):
                yield from statement.names


def with_api_import(module: cst.Module) -> cst.Module:
    """`module` with our import after its last robomimic import at top level, else after its last
    import or docstring. It stands above the first function or class, whose decorators may need it.
    """
    after = {"robomimic": -1, "import": -1, "head": -1}
    for index, line in enumerate(module.body):
        if isinstance(line, (cst.FunctionDef, cst.ClassDef)):
            break
        kind = _kind_of_line(line, first=index == 0)
        if kind:
            after[kind] = index
    position = next((index for index in after.values() if index >= 0), -1) + 1
    # Built, not parsed: a parsed "\n" would stay one in a file of "\r\n".
    package, name = API_MODULE.split(".")
    alias = cst.ImportAlias(
        cst.Attribute(cst.Name(package), cst.Name(name)), asname=cst.AsName(cst.Name(API_ALIAS))
    )
    statement = cst.SimpleStatementLine([cst.Import([alias])])
    return module.with_changes(body=[*module.body[:position], statement, *module.body[position:]])


def _kind_of_line(line: cst.BaseStatement, first: bool) -> str:
    if not isinstance(line, cst.SimpleStatementLine):
        return ""
    for statement in line.body:
        if isinstance(statement, cst.Import):
            roots = {dotted(alias.name).split(".")[0] for alias in statement.names}
            return "robomimic" if "robomimic" in roots else "import"
        if isinstance(statement, cst.ImportFrom):
            root = dotted(statement.module).split(".")[0]
            if root == "__future__":
                return "head"
            return "robomimic" if root == "robomimic" or statement.relative else "import"
        is_expression = first and isinstance(statement, cst.Expr)
        if is_expression and isinstance(statement.value, cst.SimpleString):
            return "head"
    return ""
