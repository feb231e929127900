"""One function prints, so that nothing of a stranger's reaches a terminal as an escape sequence."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [*(ROOT / "robomimic_ddp").rglob("*.py"), *(ROOT / "patches").rglob("*.py")]
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}


def prints(text: str) -> list[int]:
    """Lines that print, or write to a standard stream, in another way than `terminal` has."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name, stream = getattr(node.func, "id", ""), getattr(node.func, "value", None)
        writes = (
            getattr(node.func, "attr", "") == "write" and getattr(stream, "attr", "") in STREAMS
        )
        lines += [node.lineno] if name in ("print", "pprint") or writes else []
    return lines


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_terminal_prints(file: Path) -> None:
    if file.name != "terminal.py":
        assert prints(file.read_text()) == [], "print with terminal.print_clean or terminal.say"


def test_the_rule_sees_prints() -> None:
    assert prints("print(1)\nsys.stderr.write('x')\nsys.__stderr__.write('x')") == [1, 2, 3]
    assert prints("file.write('x')\nsay(1)\nsys.stdout.buffer.write(diff)") == []
