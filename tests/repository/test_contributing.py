"""docs/contributing.md names a file for each behaviour: the file exists, and has that name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| ([^|`]+) \| `([\w/]+\.py)` \| `(\w+)` \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs" / "contributing.md").read_text(encoding="utf-8"))


def test_thirty_behaviours_are_listed():
    assert len({behaviour for behaviour, _, _ in ROWS}) == len(ROWS) >= 30


@pytest.mark.parametrize(("behaviour", "path", "name"), ROWS, ids=[row[0] for row in ROWS])
def test_the_file_has_it(behaviour, path, name):
    file = ROOT / path if path.startswith("patches/") else ROOT / "robomimic_ddp" / path
    names = {getattr(node, "name", "") for node in ast.parse(file.read_text()).body}
    assert name in names, f"{path} has no {name}: say where one finds how to {behaviour}"
