"""The printed patch: `git apply` and our apply give the same bytes."""

from __future__ import annotations

import subprocess

import pytest

from robomimic_ddp.patches import record
from robomimic_ddp.patches.report import unified_diff
from tests.patches.support import append, examine, snapshot, write_host


@pytest.mark.parametrize(
    ("newline", "folder", "tail"),
    [
        ("\n", "plain", b"# a last line without an end"),
        ("\r\n", "a folder", b"\r\n# a last line without an end"),
        ("\n", "a folder", b"\x0c\n# \xc3\xa9\n"),
    ],
    ids=["line feeds", "CRLF", "form feed"],
)
def test_git_makes_the_same_bytes_of_it(tmp_path, newline, folder, tail):
    root = tmp_path / folder
    package = write_host(root / "inner folder", newline)
    path = package / "utils/torch_utils.py"
    path.write_bytes(path.read_bytes() + tail)
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    examination = examine(root)
    patch = unified_diff(examination)
    record.apply(examination)
    ours = {name: data for name, (data, _) in snapshot(root).items()}
    ours.pop(f"inner folder/robomimic/{record.NAME}")
    assert unified_diff(examine(root)) == b""
    record.revert(examination.host)
    subprocess.run(["git", "apply", "-"], cwd=root, input=patch, check=True)
    assert {name: data for name, (data, _) in snapshot(root).items()} == ours


def test_blank_lines_are_not_shown_as_changed(host):
    append(host / "utils/torch_utils.py", "x = 1\n\n" * 150)
    lines = unified_diff(examine(host)).splitlines()
    assert b"-" not in lines, "long files have many blank lines"
