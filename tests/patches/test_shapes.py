"""Every shape of real hosts by name, and concatenations of them, in files as people write them."""

from __future__ import annotations

import ast
import difflib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robomimic_ddp.patches import engine, record
from tests.patches.shapes import SEAMS, build
from tests.patches.support import examine, snapshot

MOST = max(map(len, SEAMS.values()))


@pytest.mark.parametrize("number", range(MOST))
def test_every_shape(tmp_path, number):
    """In as many hosts as the seam with the most shapes has: each takes the next one of every
    seam.
    """
    chosen = {seam: list(shapes)[number % len(shapes)] for seam, shapes in SEAMS.items()}
    check_there_and_back(build(tmp_path, chosen))


COMMENTS = [
    "# plain",
    "# \u00fcnic\u00f6de \u6d4b\u8bd5",
    "#\ttabs\t",
    "'a string statement'",
    "\x0c",
]
STYLES = {
    "as written": lambda text: text.encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "tabs": lambda text: text.replace("    ", "\t").encode(),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "latin-1": lambda text: ("# coding: latin-1\n# caf\u00e9\n" + text).encode(
        "latin-1", "replace"
    ),
    "no last line end": lambda text: text.rstrip("\n").encode(),
    "trailing spaces": lambda text: text.replace(":\n", ": \n").encode(),
}


@st.composite
def files(draw) -> dict:
    chosen = {seam: draw(st.sampled_from(list(shapes))) for seam, shapes in SEAMS.items()}
    styles = draw(st.lists(st.sampled_from(list(STYLES)), min_size=6, max_size=6))
    return {
        "chosen": chosen,
        "styles": styles,
        "comment": draw(st.sampled_from(COMMENTS)),
        "tail": draw(st.sampled_from(["", "\n\n\n", "\n# end"])),
    }


def write(root: Path, host: dict) -> Path:
    package = build(root, host["chosen"])
    paths = sorted(path for path in package.rglob("*.py") if path.stat().st_size)
    for path, style in zip(paths, host["styles"]):
        text = path.read_text().rstrip("\n") + f"\n{host['comment']}\n{host['tail']}"
        path.write_bytes(STYLES[style](text))
    return package


def edited_lines(examination: engine.Examination, path: str) -> set[int]:
    """Lines on which an edit starts, and the nine after it, where a formatter broke it up."""
    lines = {
        line
        for finding in examination.findings
        if finding.path == path and finding.outcome.lines
        for line in finding.outcome.lines
    }
    return {line + more for line in lines for more in range(10)}


@settings(max_examples=12)
@given(files())
def test_concatenations(host):
    with tempfile.TemporaryDirectory() as folder:
        check_there_and_back(write(Path(folder), host))


def check_there_and_back(package: Path) -> None:
    """Output parses; lines without an edit are untouched; apply twice is once; revert gives all
    back.
    """
    before = snapshot(package)
    examination = examine(package)
    problems = [(finding.path, finding.outcome) for finding in examination.problems]
    assert not examination.blocked, problems
    for patch in examination.patches:
        ast.parse(patch.after)
        check_untouched_lines(examination, patch)
    record.apply(examination)
    again = examine(package)
    assert (again.state, again.patches) == ("patched", ())
    record.revert(examination.host)
    assert snapshot(package) == before


def check_untouched_lines(examination, patch) -> None:
    """Lines go only where an edit was reported, and what is added in their place is ours."""
    old = (patch.before or b"").splitlines(keepends=True)
    new = patch.after.splitlines(keepends=True)
    allowed = edited_lines(examination, patch.path)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal" or patch.before is None:
            continue
        assert set(range(start + 1, end + 1)) <= allowed, (patch.path, old[start:end])
        added = b"".join(new[new_start:new_end])
        ours = (b"DDPUtils", b"raise", b"module_key", b"to_float(", b"from robomimic_ddp.api")
        assert any(word in added for word in ours), (patch.path, added)


def test_the_check_of_untouched_lines_can_fail(tmp_path):
    package = build(tmp_path, {})
    examination = examine(package)
    patch = next(patch for patch in examination.patches if patch.path == "scripts/train.py")
    spoilt = patch.after.replace(b'"""A train script."""', b'"""a train script."""')
    with pytest.raises(AssertionError):
        check_untouched_lines(examination, engine.FilePatch(patch.path, patch.before, spoilt))
