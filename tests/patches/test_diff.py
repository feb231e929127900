"""The printed patch: `git apply` and our apply give the same bytes."""

from __future__ import annotations

import subprocess

import pytest

from robomimic_ddp.patches import changes, manifest
from robomimic_ddp.patches.diff import unified_diff
from tests.patches.support import examine, snapshot, write_host


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("folder", ["plain", "a folder"])
@pytest.mark.parametrize("tail", ["", "\n\n# last line without an end", "\n\x0c\n# \u00e9\n"])
def test_git_takes_it(tmp_path, newline, folder, tail):
    root = tmp_path / folder
    package = write_host(root / "inner folder", newline)
    path = package / "utils/torch_utils.py"
    path.write_bytes(path.read_bytes().rstrip() + tail.encode())
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    plain = snapshot(root)
    examination = examine(root)
    patch = unified_diff(examination)
    changes.apply(examination)
    ours = snapshot(root)
    ours.pop(f"inner folder/robomimic/{manifest.NAME}")
    manifest.revert(examination.host)
    assert snapshot(root) == plain
    subprocess.run(["git", "apply", "-"], cwd=root, input=patch, check=True)
    assert {name: data for name, (data, _) in snapshot(root).items()} == {
        name: data for name, (data, _) in ours.items()
    }


def test_a_patched_host_gives_no_diff(host):
    changes.apply(examine(host))
    assert unified_diff(examine(host)) == b""


def test_blank_lines_are_not_shown_as_changed(host):
    blanks = "\n".join("x = 1\n\n" for _ in range(150))
    path = host / "utils/torch_utils.py"
    path.write_text(path.read_text() + blanks)
    lines = unified_diff(examine(host)).decode().splitlines()
    removed = [line for line in lines if line.startswith("-") and not line.startswith("---")]
    assert "-" not in removed
