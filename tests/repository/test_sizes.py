"""What one can look through: files of a folder, lines of a file."""

from __future__ import annotations

from collections import Counter

from tests.hosts import ROOT

ROOMS = ("robomimic_ddp", "patches", "scripts")
MOST_FILES, MOST_LINES = 15, 320


def sources() -> list:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    assert len(files) > 250
    return [file for file in files if file.name != "__init__.py"]


def test_no_folder_has_many_files() -> None:
    counts = Counter(file.parent for file in sources())
    assert not [f"{folder}: {n}" for folder, n in counts.items() if n > MOST_FILES]


def test_no_file_has_many_lines() -> None:
    lines = {file: file.read_text(encoding="utf-8").count("\n") for file in sources()}
    assert not [f"{file}: {count}" for file, count in lines.items() if count > MOST_LINES]
