"""Files that docs/contributing.md and the drawings of docs/how_it_works.md name are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("", "robomimic_ddp")
ROW = re.compile(r"^\| [^|`]+ \| `([\w/]+\.py)` \| `(\w+)` \|$", re.MULTILINE)


def test_the_file_of_each_behaviour_has_it() -> None:
    rows = ROW.findall((ROOT / "docs" / "contributing.md").read_text(encoding="utf-8"))
    assert len(rows) >= 30
    for path, name in rows:
        file = ROOT / path if path.startswith("patches/") else ROOT / "robomimic_ddp" / path
        names = {getattr(node, "name", "") for node in ast.parse(file.read_text()).body}
        assert name in names, f"{path} has no {name}"


def test_how_it_works_names_files_that_exist() -> None:
    drawings = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/]+/\w+\.py", drawings))
    assert len(named) > 50
    assert not [name for name in named if not any((ROOT / room / name).exists() for room in ROOMS)]
