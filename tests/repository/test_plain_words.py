"""Pages, docstrings, comments and messages are in plain English, with the words of the field."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {"messages.md"}
"""Made of the code's messages when the site is built; and not yet rewritten."""
PAGES = [
    page
    for pattern in ("README.md", "CHANGELOG.md", "docs/*.md")
    for page in sorted(ROOT.glob(pattern))
    if page.name not in SKIPPED
]
"""Add a pattern to check more files."""
SOURCES = [
    file
    for pattern in (
        "robomimic_ddp/**/*.py",
        "patches/**/*.py",
        "scripts/**/*.py",
        "scripts/*.sh",
        "scripts/*.sbatch",
        "tests/**/*.py",
    )
    for file in sorted(ROOT.glob(pattern))
    if "robomimic_ddp/patches" not in file.as_posix()
    and "__pycache__" not in file.parts
    and file != Path(__file__).resolve()  # it lists them
]
WORDS = {
    r"anew": "bookish: again, newly, rebuild",
    r"told": "programs do not talk: receives, prints, is given",
    r"so many": "translated: that number of, as many as",
    r"of (its|his|their|our) own": "translated: separate, private",
    r"(go|goes|going|went) on": "resume, continue",
    r"lies?": "is, are",
    r"rows? of windows": "sequence of windows",
    r"holds?": "contains, has, keeps",
    r"data sets?": "dataset",
    r"legs?": "segment",
}
"""Expression -> why, and what to write in its place."""
NOT_PROSE = re.compile(r"^```.*?^```|^ {4}\S.*?$|`[^`]*`", re.MULTILINE | re.DOTALL)
TABLE_OF_OPTIONS = re.compile(r"^\| option \|.*", re.MULTILINE | re.DOTALL)


CODE_IN_STRINGS = re.compile(r"`[^`]*`|\{[^{}]*\}")
SPOKEN = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def faults(text: str, not_prose: re.Pattern = NOT_PROSE) -> list[tuple[int, str, str]]:
    """Line, word and advice for each banned word outside of code."""
    prose = not_prose.sub(lambda code: "`" + "\n" * code[0].count("\n"), text)
    return [
        (prose.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), advice)
        for word, advice in WORDS.items()
        for found in re.finditer(rf"\b{word.replace(' ', chr(92) + 's+')}\b", prose, re.IGNORECASE)
    ]


def test_banned_words_are_found_outside_of_code() -> None:
    text = "a `told` b\n```\nlies\n```\n    holds\nthe\nset of\nits own, in\nrows of Windows"
    assert [(line, word) for line, word, _ in faults(text)] == [
        (7, "of its own"),
        (9, "rows of Windows"),
    ]
    assert not faults("a threshold, a foothold, an untold household, believes, ongoing")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_plain_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.name == "options.md":
        text = TABLE_OF_OPTIONS.sub("", text)  # descriptions of the code
    found = [
        f"{page.name}:{line}: {word!r}; write: {advice}" for line, word, advice in faults(text)
    ]
    assert not found, "\n".join(found)


def spoken(file: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment, docstring and message; a string of one word may be a key."""
    if file.suffix != ".py":
        yield from enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        return
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type in SPOKEN and " " in token.string:
                yield token.start[0], token.string


def source_faults(file: Path) -> list[str]:
    return [
        f"{file.name}:{start + line - 1}: {word!r}; write: {advice}"
        for start, text in spoken(file)
        for line, word, advice in faults(text, CODE_IN_STRINGS)
    ]


def test_banned_words_are_found_in_comments_docstrings_and_messages(tmp_path: Path) -> None:
    lines = ('told = {"legs": 1}  # it lies', '"""One.', "", "Two holds `told`.", '"""')
    (tmp_path / "a.py").write_text("\n".join([*lines, 'f"so {told} many, told"', ""]))
    found = [fault.partition(";")[0] for fault in source_faults(tmp_path / "a.py")]
    assert found == ["a.py:1: 'lies'", "a.py:4: 'holds'", "a.py:6: 'told'"]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_sources_use_plain_words(file: Path) -> None:
    assert not source_faults(file), "\n".join(source_faults(file))
