"""docs/contributing.md names a file for each behaviour: the file exists, and has that name. So do
the files in the drawings of docs/how_it_works.md.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| ([^|`]+) \| `([\w/]+\.py)` \| `(\w+)` \|$", re.MULTILINE)
ROOMS = ("", "robomimic_ddp")
ROWS = ROW.findall((ROOT / "docs" / "contributing.md").read_text(encoding="utf-8"))


def test_thirty_behaviours_are_listed():
    assert len({behaviour for behaviour, _, _ in ROWS}) == len(ROWS) >= 30


@pytest.mark.parametrize(("behaviour", "path", "name"), ROWS, ids=[row[0] for row in ROWS])
def test_the_file_has_it(behaviour, path, name):
    file = ROOT / path if path.startswith("patches/") else ROOT / "robomimic_ddp" / path
    names = {getattr(node, "name", "") for node in ast.parse(file.read_text()).body}
    assert name in names, f"{path} has no {name}: say where one finds how to {behaviour}"


def test_how_it_works_names_files_that_exist():
    drawings = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/]+/\w+\.py", drawings))
    assert len(named) > 50
    assert not [name for name in named if not any((ROOT / room / name).exists() for room in ROOMS)]
