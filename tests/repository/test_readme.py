"""README.md is short, and what it and the page of options say of the code is so."""

from __future__ import annotations

import re
from pathlib import Path

import options_page

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def test_the_options_that_it_names_have_these_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", README.read_text(), re.M)
    assert len(rows) == 5
    assert all(f"| `{name}` | `{default}` |" in options_page.page() for name, default in rows), rows


def test_the_page_of_options_is_the_codes() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    assert page == options_page.page(), "build the documentation again"


def test_it_fits_on_a_few_screens() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_the_set_up_commands_exist() -> None:
    first_screen = "\n".join(README.read_text().splitlines()[:15])
    for command in ("scripts/demo.sh", "scripts/test.sh"):
        assert command in first_screen
        assert (ROOT / command).stat().st_mode & 0o111, f"{command} is not executable"


def marks(page: Path) -> dict[str, object]:
    """What two languages of a page share: commands, code, links, and the shape of the rest."""
    lines = page.read_text(encoding="utf-8").splitlines()
    text = "\n".join(lines)
    commands = [re.sub(r"\s+#.*", "", line) for line in lines if line.startswith("    ")]
    return {
        "commands": commands,
        "blocks": FENCED.findall(text),
        "headings": [line.partition(" ")[0] for line in lines if line.startswith("#")],
        "rows of tables": [line.count("|") for line in lines if line.startswith("|")],
        "items": sum(line.startswith("- ") for line in lines),
        "code": sorted(set(re.findall(r"`([^`\n]+)`", FENCED.sub("", text)))),
        "links": sorted(set(re.findall(r"\]\((\S+?)\)", text)) - {"README.md", "README.zh-CN.md"}),
    }


def test_the_chinese_page_says_the_same() -> None:
    english, chinese = marks(README), marks(ROOT / "README.zh-CN.md")
    for name, found in english.items():
        assert chinese[name] == found, name
