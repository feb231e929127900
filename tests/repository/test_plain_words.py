"""Pages, comments and messages are in plain English, and names of variables say something."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MADE = {"messages.md", Path(__file__).name}
"""Made of the code's messages when the site is built; and this file, which lists the words."""
PACKAGE = ("robomimic_ddp/**/*.py", "patches/**/*.py")
OTHERS = (
    *("README.md", "CHANGELOG.md", "docs/*.md", "scripts/*.sh", "scripts/*.sbatch"),
    *("scripts/**/*.py", "tests/**/*.py"),
)
WORDS = {
    r"anew": "again, newly, rebuild",
    r"told": "programs do not talk: receives, prints, is given",
    r"so many": "that number of, as many as",
    r"of (its|his|their|our) own": "separate, private",
    r"(go|goes|going|went) on": "resume, continue",
    r"lies?": "is, are",
    r"rows? of windows": "sequence of windows",
    r"holds?": "contains, has, keeps",
    r"data sets?": "dataset",
    r"legs?": "segment",
}
"""Expression -> what to write in its place."""
TURNS = {
    r"(?<!there )is no (?!longer|more)": "is not a",
    r"from which on|for ever|beside|its like|by turns|which has none|in the midst"
    r"|of no (concern|business|encoding)": "it in the order of English",
}
"""The same, of the package."""
NAMES = {"one", "found", "made", "said", "held", "own", "given", "kept", "taken", "more"}
"""Variables of the package that say nothing of a value: `optimizer`, `checkpoint`, `parameters`."""
NOT_PROSE = re.compile(r"^```.*?^```|^ {4}\S.*?$|`[^`]*`", re.MULTILINE | re.DOTALL)
CODE_IN_STRINGS = re.compile(r"`[^`]*`|\{[^{}]*\}")
TABLE_OF_OPTIONS = re.compile(r"^\| option \|.*", re.MULTILINE | re.DOTALL)
"""Descriptions of the code."""
SPOKEN = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def files_of(*patterns: str) -> list[Path]:
    """Each file once: robomimic_ddp/patches is a link."""
    files = {file for pattern in patterns for file in ROOT.glob(pattern) if file.name not in MADE}
    return sorted(file for file in files if "robomimic_ddp/patches" not in file.as_posix())


def spoken(file: Path) -> Iterator[str]:
    """A page, a script, or each comment, docstring and message of a module, without its code. A
    string of one word may be a key.
    """
    if file.suffix != ".py":
        code = NOT_PROSE if file.suffix == ".md" else CODE_IN_STRINGS
        yield code.sub("`", TABLE_OF_OPTIONS.sub("", file.read_text(encoding="utf-8")))
        return
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type in SPOKEN and " " in token.string:
                yield CODE_IN_STRINGS.sub("`", token.string)


def poor_prose(file: Path, words: dict[str, str]) -> list[str]:
    """Each of `words` in the file, and what to write."""
    patterns = {re.compile(rf"\b(?:{word})\b", re.I): advice for word, advice in words.items()}
    raw = " ".join(file.read_text(encoding="utf-8").split())
    if not any(pattern.search(raw) for pattern in patterns):
        return []  # most files: their text need not be parsed
    texts = [" ".join(text.split()) for text in spoken(file)]
    return [
        f"{file.name}: ...{text[max(0, match.start() - 30) : match.end() + 30]}...: write {advice}"
        for pattern, advice in patterns.items()
        for text in texts
        for match in pattern.finditer(text)
    ]


def poor_names(file: Path) -> list[str]:
    """Variables and parameters that are named so."""
    stored = (
        (node.lineno, getattr(node, "id", getattr(node, "arg", None)))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.arg) or isinstance(getattr(node, "ctx", None), ast.Store)
    )
    return [f"{file.name}:{line}: {name}" for line, name in stored if name in NAMES]


def test_poor_words_are_found_outside_of_code(tmp_path: Path) -> None:
    page, module = tmp_path / "a.md", tmp_path / "a.py"
    page.write_text("a `told` b\n```\nlies\n```\n    holds\nits own, believes; the set of\nits own")
    module.write_text(
        'told = {"legs": 1}  # it lies\ndef f(held): return f"so {told} is no number"'
    )
    assert len(poor_prose(page, WORDS)) == len(poor_prose(module, WORDS)) == 1
    assert len(poor_prose(module, TURNS)) == len(poor_names(module)) == 1


def test_files_use_plain_words() -> None:
    assert not [fault for file in files_of(*OTHERS, *PACKAGE) for fault in poor_prose(file, WORDS)]


def test_the_package_is_in_plain_english() -> None:
    files = files_of(*PACKAGE)
    assert len(files) > 200
    assert not [fault for file in files for fault in poor_prose(file, TURNS) + poor_names(file)]
