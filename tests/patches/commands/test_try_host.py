"""scripts/try_host.sh: a row for a host that can be patched, one that is refused, and no host."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.patches.support import CHECKOUT, commit_all, git, snapshot


def try_host(path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [CHECKOUT / "scripts" / "try_host.sh", path, *arguments],
        env={**os.environ, "PYTHON": sys.executable, "NAME": "lab/host"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_host_and_what_it_leaves_of_it(host, tmp_path):
    """git asks a repository inside it for its changes, and runs what its settings name for that."""
    inner = host.parent / "inner"
    inner.mkdir()
    (inner / "notes.txt").write_text("")
    commit_all(inner)
    git(inner, "config", "core.fsmonitor", f"touch '{tmp_path}/ran'; false")
    before = snapshot(host.parent)
    done = try_host(host.parent)
    assert (done.returncode, done.stdout) == (
        0,
        "| lab/host | - | patched, compiled, reverted | 26 |\n",
    ), done.stderr
    assert "not patched: apply would edit 4 files and add scripts/train_rlds.py." in done.stderr
    assert snapshot(host.parent) == before and not (tmp_path / "ran").exists()


def test_a_host_that_is_refused(host):
    (host / "scripts/train_mine.py").write_text("import accelerate\naccelerate.Accelerator()\n")
    done = try_host(host.parent)
    assert (done.returncode, done.stdout) == (1, "| lab/host | - | already distributed | 0 |\n")
    assert "scripts/train_mine.py:2" in done.stderr


@pytest.mark.bad_input
def test_no_host_and_no_folder(tmp_path):
    assert try_host(tmp_path).stdout == "| lab/host | - | no host | 0 |\n"
    done = try_host(tmp_path / "missing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")
