"""Values in the rooms of distributed training and of a run are named by what they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "robomimic_ddp"
ROOMS = ("commands", "distributed", "training")
NO_NAMES = {"one", "found", "made", "said", "held", "own"} | {"given", "kept", "taken", "more"}
"""Words that say nothing of a value: write `optimizer`, `checkpoint`, `parameters`."""


def poor_names(source: str) -> Iterator[str]:
    """Yield the line and the name of each variable and parameter that is named so."""
    for node in ast.walk(ast.parse(source)):
        name = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        if name in NO_NAMES:
            yield f"line {node.lineno}: {name}"


def test_variables_parameters_and_loops_are_looked_at():
    source = "made = 1\ndef f(held): return [one for one in held]\nrun.found = own(made)\n"
    assert list(poor_names(source)) == ["line 1: made", "line 2: held", "line 2: one"]


@pytest.mark.parametrize("room", ROOMS)
def test_values_have_names(room):
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert len(files) > 10
    assert not [
        f"{file.relative_to(PACKAGE)}, {name}"
        for file in files
        for name in poor_names(file.read_text(encoding="utf-8"))
    ]
