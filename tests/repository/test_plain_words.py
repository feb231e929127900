"""Pages, docstrings, comments and messages are in plain English, with the words of the field."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MADE = {"messages.md", Path(__file__).name}
"""Made of the code's messages when the site is built; and this file, which lists the words."""
PATTERNS = (
    *("README.md", "CHANGELOG.md", "docs/*.md", "scripts/*.sh", "scripts/*.sbatch"),
    *("robomimic_ddp/**/*.py", "patches/**/*.py", "scripts/**/*.py", "tests/**/*.py"),
)
FILES = sorted(
    {
        file
        for pattern in PATTERNS
        for file in ROOT.glob(pattern)
        if file.name not in MADE and "robomimic_ddp/patches" not in file.as_posix()
    }
)
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
CODE_IN_STRINGS = re.compile(r"`[^`]*`|\{[^{}]*\}")
TABLE_OF_OPTIONS = re.compile(r"^\| option \|.*", re.MULTILINE | re.DOTALL)
"""Descriptions of the code."""
SPOKEN = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def spoken(file: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of a page, of a script, and of each comment, docstring and message of a module;
    code is left out, and so is a string of one word, which may be a key.
    """
    if file.suffix != ".py":
        code = NOT_PROSE if file.suffix == ".md" else CODE_IN_STRINGS
        text = TABLE_OF_OPTIONS.sub("", file.read_text(encoding="utf-8"))
        yield 1, _without(code, text)
        return
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type in SPOKEN and " " in token.string:
                yield token.start[0], _without(CODE_IN_STRINGS, token.string)


def _without(code: re.Pattern, text: str) -> str:
    return code.sub(lambda match: "`" + "\n" * match[0].count("\n"), text)


def faults(file: Path) -> list[str]:
    """Line, word and advice for each banned word outside of code."""
    return [
        f"{file.name}:{start + text.count(chr(10), 0, found.start())}: "
        f"{' '.join(found[0].split())!r}; write: {advice}"
        for start, text in spoken(file)
        for word, advice in WORDS.items()
        for found in re.finditer(rf"\b{word.replace(' ', chr(92) + 's+')}\b", text, re.IGNORECASE)
    ]


PAGE = "a `told` b\n```\nlies\n```\n    holds\nthe\nset of\nits own, in\nrows of Windows"
SOURCE = (
    'told = {"legs": 1}  # it lies\n"""One.\n\nTwo holds `told`.\n"""\nf"so {told} many, told"\n'
)
COMMON = "a threshold, a foothold, an untold household, believes, ongoing"


@pytest.mark.parametrize(
    ("name", "text", "banned"),
    [
        ("a.md", PAGE, ["a.md:7: 'of its own'", "a.md:9: 'rows of Windows'"]),
        ("a.md", COMMON, []),
        ("a.py", SOURCE, ["a.py:1: 'lies'", "a.py:4: 'holds'", "a.py:6: 'told'"]),
    ],
)
def test_banned_words_are_found_outside_of_code(name, text, banned, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert [fault.partition(";")[0] for fault in faults(tmp_path / name)] == banned


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_use_plain_words(file: Path) -> None:
    assert not faults(file), "\n".join(faults(file))
