"""`apply --branch NAME`: one commit with the edits alone, or everything is as it was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from robomimic_ddp.patches import branch, record
from tests.patches.support import commit_all, git, snapshot, write_host

EDITED = "robomimic/utils/torch_utils.py"


@pytest.fixture(autouse=True)
def author(tmp_path, monkeypatch):
    """An author for git, and no settings of this machine."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "t")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "t@localhost")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def state(checkout: Path) -> tuple:
    """All that `--branch` could change."""
    head = (checkout / ".git/HEAD").read_text() if (checkout / ".git").is_dir() else ""
    shown = [["branch", "-a"], ["status", "--porcelain"], ["log", "--oneline", "--all"]]
    return (head, snapshot(checkout), *(git(checkout, *words) for words in shown if head))


def write_hook(checkout: Path, name: str, script: str) -> None:
    path = checkout / ".git/hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_one_commit_has_the_edits_alone_and_says_what_they_do(checkout, command):
    (checkout / ".git/info/exclude").write_text("*.json\n")
    (checkout / "notes.txt").write_text("mine")
    code, out, err = command("apply", checkout, "--branch", "ddp")
    assert (code, err) == (0, "") and "on the new branch ddp" in out
    assert git(checkout, "branch", "--show-current") == "ddp\n"
    assert git(checkout, "status", "--porcelain") == "?? notes.txt\n"
    names = {"scripts/train_rlds.py", "scripts/train.py", "utils/train_utils.py", record.NAME}
    names |= {"utils/torch_utils.py", "algo/diffusion_policy.py"}
    changed = git(checkout, "diff", "--name-only", "main", "ddp").split()
    assert changed == sorted(f"robomimic/{name}" for name in names)
    assert git(checkout, "rev-list", "--count", "main..ddp") == "1\n"
    text = " ".join(git(checkout, "log", "-1", "--format=%B").split())
    assert text.startswith("Train on several ranks with robomimic-ddp Made by")
    edit = "utils/torch_utils.py:6 [device, cuda_device]: use DDPUtils.cuda_device() for the CUDA"
    assert edit in text and "the edits change nothing" in text


def dirty(checkout, monkeypatch):
    path = checkout / EDITED
    path.write_text(path.read_text() + "mine = 1\n")


def without_identity(checkout, monkeypatch):
    git(checkout, "config", "user.useConfigOnly", "true")
    for name in [name for name in os.environ if name.startswith(("GIT_AUTHOR", "GIT_COMM"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("EMAIL", raising=False)


def refused_by_a_hook(checkout, monkeypatch):
    script = f"echo x >> {EDITED}; rm robomimic/utils/train_utils.py; git add .; echo no tests"
    write_hook(checkout, "pre-commit", f"{script}; exit 1")


def rewritten_by_a_hook(checkout, monkeypatch):
    write_hook(checkout, "pre-commit", f"echo '# formatted' >> {EDITED}; git add .")


def without_git(checkout, monkeypatch):
    monkeypatch.setenv("PATH", str(checkout / "nothing"))


def no_repository(checkout, monkeypatch):
    shutil.rmtree(checkout / ".git")


def not_tracked(checkout, monkeypatch):
    git(checkout, "rm", "-q", "--cached", EDITED)
    git(checkout, "commit", "-q", "-m", "not ours")


def of_one_file(checkout, monkeypatch):
    (checkout / "robomimic/utils").chmod(0o500)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "prepare", "words"),
    [
        ("ddp", dirty, "has uncommitted changes"),
        ("main", None, "a branch named 'main' already exists"),
        ("main/ddp", None, "git switch was refused"),
        ("a..b", None, "not a valid branch name"),
        ("ddp", without_identity, "git commit was refused: Author identity unknown"),
        ("ddp", refused_by_a_hook, "no tests"),
        ("ddp", rewritten_by_a_hook, "a hook of the repository has rewritten"),
        ("ddp", without_git, "git cannot be started"),
        ("ddp", no_repository, "not a git repository"),
        ("ddp", not_tracked, "did not match any file(s) known to git"),
        ("ddp", of_one_file, "is read-only"),
    ],
)
def test_what_stops_it_is_one_error_and_nothing_is_changed(
    checkout, command, monkeypatch, name, prepare, words
):
    before = state(checkout)
    with monkeypatch.context() as patched:
        if prepare is not None:
            prepare(checkout, patched)
        if prepare is not without_git:
            before = state(checkout)
        code, out, err = command("apply", checkout, "--branch", name)
    assert (code, out, state(checkout)) == (1, "", before), err
    assert err.startswith("robomimic-ddp: ") and words in err


@pytest.mark.bad_input
def test_wrong_usage_and_a_commit_without_edits(checkout, command):
    assert command("apply", checkout, "--branch", "ddp", "--check")[0] == 2
    assert command("apply", checkout, "--branch", "ddp")[0] == 0
    before = state(checkout)
    code, out, err = command("apply", checkout, "--branch", "again")
    assert (code, out, "nothing to commit" in err, "revert" in err) == (1, "", True, True)
    assert state(checkout) == before


@pytest.mark.planted_fault
def test_ctrl_c_during_the_commit_undoes_it_and_a_branch_without_name_too(
    checkout, command, monkeypatch
):
    git(checkout, "checkout", "-q", "--detach")
    before = state(checkout)

    def interrupted(changes):
        raise KeyboardInterrupt

    monkeypatch.setattr(branch, "_require_unchanged", interrupted)
    assert command("apply", checkout, "--branch", "ddp")[0] == 130
    assert state(checkout) == before


def test_what_cannot_be_undone_is_named(checkout, command, monkeypatch):
    write_hook(checkout, "pre-commit", "chmod a-w robomimic/utils; exit 1")
    code, out, err = command("apply", checkout, "--branch", "ddp")
    (checkout / "robomimic/utils").chmod(0o755)
    assert (code, out) == (1, "")
    assert "Not all of it could be undone" in err and "robomimic/utils is read-only" in err


def test_a_detached_head_a_subfolder_a_worktree_and_a_submodule(tmp_path, command):
    outer = tmp_path / "outer"
    write_host(outer / "learning")
    commit_all(outer)
    git(outer, "checkout", "-q", "--detach")
    assert command("apply", outer / "learning", "--branch", "a")[0] == 0
    git(outer, "checkout", "-q", "main")
    git(outer, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "tree")
    assert command("apply", tmp_path / "tree", "--branch", "b")[0] == 0
    assert git(outer, "status", "--porcelain") == ""
    parent = tmp_path / "parent"
    parent.mkdir()
    git(parent, "init", "-q", ".")
    allowed = ["-c", "protocol.file.allow=always"]
    git(parent, *allowed, "submodule", "add", "-q", str(outer), "host")
    git(parent, "commit", "-q", "-m", "parent")
    assert command("apply", parent / "host", "--branch", "c")[0] == 0
    for folder, name in ((outer, "a"), (outer, "b"), (parent / "host", "c")):
        assert git(folder, "rev-list", "--count", f"main..{name}") == "1\n"
