"""Names, comments, docstrings and messages say what is meant, in the order of English."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    *("checkpoint", "commands", "config", "data", "distributed", "monitoring", "training"),
    "verify",
)
FOLDERS = {
    **{room: ROOT / "robomimic_ddp" / room for room in ROOMS},
    "patches": ROOT / "patches",
}
NO_NAMES = {"one", "found", "made", "said", "held", "own"} | {"given", "kept", "taken", "more"}
"""Words that say nothing of a value: write `optimizer`, `checkpoint`, `parameters`."""
NO_PROSE = re.compile(
    r"(?<!there )\bis no (?!longer|more)|from which on|\bgoes on\b|\bfor ever\b|\bbeside\b"
    r"|\banew\b|\bits like\b|\bby turns\b|which has none|\bof no (concern|business|encoding)\b"
    r"|in the midst|^\"\"\"(Of|Those of) "
)
"""Turns that are translated: write "is not a number", "after", "resumes", "in the folder of"."""
SPOKEN = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def files_of(room: str) -> list[Path]:
    if room == "top level":
        return sorted((ROOT / "robomimic_ddp").glob("*.py"))
    return sorted(FOLDERS[room].rglob("*.py"))


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


def poor_prose(source: str) -> Iterator[str]:
    """Yield the line and the words of each turn in comments, docstrings and messages."""
    for token in tokenize.generate_tokens(iter(source.splitlines(True)).__next__):
        if token.type in SPOKEN:
            text = " ".join(token.string.split())
            yield from (f"line {token.start[0]}: {match[0]}" for match in NO_PROSE.finditer(text))


def test_variables_parameters_and_loops_are_looked_at():
    source = "made = 1\ndef f(held): return [one for one in held]\nrun.found = own(made)\n"
    assert list(poor_names(source)) == ["line 1: made", "line 2: held", "line 2: one"]


def test_comments_docstrings_and_messages_are_looked_at():
    source = (
        'x = f"{x} is no number"  # from which on\n"""The file\nbeside it; there is no other."""\n'
    )
    faults = ["line 1: is no ", "line 1: from which on", "line 2: beside"]
    assert list(poor_prose(source)) == faults


@pytest.mark.parametrize("room", [*FOLDERS, "top level"])
@pytest.mark.parametrize("faults", [poor_names, poor_prose])
def test_rooms_are_in_plain_english(faults, room):
    files = files_of(room)
    assert len(files) > 5
    assert not [
        f"{file.relative_to(ROOT)}, {fault}"
        for file in files
        for fault in faults(file.read_text(encoding="utf-8"))
    ]
