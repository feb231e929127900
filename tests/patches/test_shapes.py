"""Every shape of real hosts, many in one host, in files as people write them."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

from robomimic_ddp.patches import engine, record
from tests.patches.shapes import SEAMS, build
from tests.patches.support import examine, snapshot

STYLES: dict[str, Callable[[str], bytes]] = {
    "as written": lambda text: f"{text}\n\n# \u00fcnic\u00f6de \u6d4b\u8bd5".encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "tabs": lambda text: text.replace("    ", "\t").encode() + b"#\ttabs\t\n",
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.replace(":\n", ": \n").encode(),
    "latin-1": lambda text: f"# coding: latin-1\n# caf\u00e9\n{text}\x0c\n".encode("latin-1"),
}
"""As people write files: a host in each."""


@pytest.mark.parametrize("number", range(max(len(STYLES), *map(len, SEAMS.values()))))
def test_every_shape_in_each_style(tmp_path, number):
    """In as many hosts as the seam with the most shapes has: each takes the next one of every
    seam.
    """
    chosen = {seam: list(shapes)[number % len(shapes)] for seam, shapes in SEAMS.items()}
    package = build(tmp_path, chosen)
    style = list(STYLES.values())[number % len(STYLES)]
    for path in package.rglob("*.py"):
        if path.stat().st_size:
            path.write_bytes(style(path.read_text()))
    check_there_and_back(package)


def edited_lines(examination: engine.Examination, path: str) -> set[int]:
    """Lines on which an edit starts, and the nine after it, where a formatter broke it up."""
    lines = {
        line
        for finding in examination.findings
        if finding.path == path and finding.outcome.lines
        for line in finding.outcome.lines
    }
    return {line + more for line in lines for more in range(10)}


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
        ours = (b"DDPUtils", b"raise", b"module_key", b"from robomimic_ddp.api")
        assert any(word in added for word in ours), (patch.path, added)


def test_the_check_of_untouched_lines_can_fail(tmp_path):
    package = build(tmp_path, {})
    examination = examine(package)
    patch = next(patch for patch in examination.patches if patch.path == "scripts/train.py")
    spoilt = patch.after.replace(b'"""A train script."""', b'"""a train script."""')
    with pytest.raises(AssertionError):
        check_untouched_lines(examination, engine.FilePatch(patch.path, patch.before, spoilt))
