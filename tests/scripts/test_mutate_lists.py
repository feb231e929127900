"""What scripts/mutate and its list of survivors name still exists."""

from __future__ import annotations

import ast
from typing import Any

from tests.hosts import ROOT

SOURCE = (ROOT / "scripts" / "mutate" / "groups.py").read_text(encoding="utf-8")


def constant(name: str) -> Any:
    """A constant of the script, which needs mutmut: an extra."""
    assigned = [node for node in ast.parse(SOURCE).body if isinstance(node, ast.Assign)]
    return next(ast.literal_eval(node.value) for node in assigned if node.targets[0].id == name)


def test_modules_and_tests_of_the_groups_exist() -> None:
    for modules, tests in constant("GROUPS").items():
        for name in modules.split():
            assert (ROOT / "robomimic_ddp" / f"{name}.py").is_file(), name
        for name in tests.split():
            assert (ROOT / "tests" / f"{name}.py").is_file(), name


def test_tests_that_are_left_out_exist() -> None:
    every = "".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py")
    )
    for name in constant("LEFT_OUT"):
        assert name in every or name.startswith("-"), name


def test_survivors_are_lines_of_their_modules() -> None:
    text = (ROOT / "scripts" / "surviving_mutants.txt").read_text(encoding="utf-8")
    listed = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert listed
    for line in listed:
        module, _, change = line.partition(": ")
        lines = (ROOT / "robomimic_ddp" / module).read_text(encoding="utf-8").splitlines()
        assert any(change.startswith(f"{' '.join(code.split())} -> ") for code in lines), line
