"""README.md is short, and what it and the page of options say of the code is so."""

from __future__ import annotations

import re
from pathlib import Path

from robomimic_ddp.config.options import markdown_table

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def test_the_options_that_it_names_have_these_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", README.read_text(), re.M)
    assert len(rows) == 5
    assert all(f"| `{name}` | `{default}` |" in markdown_table() for name, default in rows), rows


def test_the_page_of_options_is_the_codes() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    assert page.endswith("\n\n" + markdown_table() + "\n"), "build the documentation again"


def test_it_fits_on_a_few_screens() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_the_set_up_commands_exist() -> None:
    first_screen = "\n".join(README.read_text().splitlines()[:15])
    for command in ("scripts/demo.sh", "scripts/test.sh"):
        assert command in first_screen
        assert (ROOT / command).stat().st_mode & 0o111, f"{command} is not executable"
