"""Every attribute of a host, or of another package, that the package replaces has a row in the
tables of docs/how_it_works.md, and every row names a module that replaces it.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import robomimic_ddp
from tests.hosts import ROOT

PACKAGE = Path(robomimic_ddp.__file__).parent
WITHOUT_RUN = ("cli.py", "commands/launch/", "config/monkeypatch.py")
"""These replace attributes in a process that trains no run: launchers, a command's import path."""
OURS = {
    ("accumulating", "training/step/accumulation.py"),
    ("in_rollouts", "training/epoch.py"),
    ("_acting", "distributed/gradients/step_guard.py"),
}
"""Attributes of the package's own objects."""


def rows() -> set[tuple[str, str]]:
    """(attribute, module) of each row."""
    found = set()
    for line in (ROOT / "docs" / "how_it_works.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[3].endswith(".py`"):
            module = cells[3].strip("`")
            found |= {(attribute, module) for attribute in re.findall("`([^`]+)`", cells[1])}
    return found


def sources() -> dict[str, str]:
    """Source text of each module that trains, by its path in the package."""
    files = {str(file.relative_to(PACKAGE)): file for file in PACKAGE.rglob("*.py")}
    return {
        name: file.read_text() for name, file in files.items() if not name.startswith(WITHOUT_RUN)
    }


def attributes(name: str, text: str) -> Iterator[str | None]:
    """What the module replaces: by `swapped`, or as a class; None where a variable names it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            targets = [target for target in node.targets if isinstance(target, ast.Attribute)]
            yield from ("__class__" for target in targets if target.attr == "__class__")
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "swapped":
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant):
                yield attribute.value
            else:
                dotted = f"robomimic_ddp.{name[:-3].replace('/', '.')}"
                yield getattr(importlib.import_module(dotted), attribute.id, None)


def test_every_replacement_has_a_row() -> None:
    table = rows()
    modules = {module for _, module in table}
    for name, text in sources().items():
        for attribute in attributes(name, text):
            if (attribute, name) in OURS:
                continue
            assert name in modules, f"{name} has no row"
            if attribute is not None:
                assert (attribute, name) in table, f"{attribute} of {name} has no row"


def test_every_row_is_of_a_module_that_replaces_it() -> None:
    texts = sources()
    # Callers of `installed` name the methods that step_hooks.py replaces.
    callers = [text for text in texts.values() if "step_hooks.installed(" in text]
    texts["monitoring/step_hooks.py"] += "".join(callers)
    for attribute, module in rows():
        is_named = re.search(rf"\b{attribute}\b", texts[module])
        assert is_named or attribute in attributes(module, texts[module]), (attribute, module)
