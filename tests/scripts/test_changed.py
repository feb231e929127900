"""`--changed`: which tests a changed file needs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hosts import ROOT
from tests.plugins import changed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("README.md", {"repository", "e2e/docs/test_docs.py"}),
        ("patches/engine.py", {"repository", "fixers", "patches"}),
        (
            "robomimic_ddp/data/sampling/sampler.py",
            {"repository", "data", "distributed", "ranks", "faults"},
        ),
        ("robomimic_ddp/monitoring/debug.py", {"repository", "monitoring", "ranks"}),
        ("robomimic_ddp/data/rlds/dataset.py", {"repository", "data", "rlds", "e2e/rlds"}),
        ("robomimic_ddp/errors.py", {"repository"}),
        ("tests/data/test_sampling.py", {"repository", "data/test_sampling.py"}),
        ("tests/ranks/pool.py", {"repository", "ranks"}),
        ("tests/data/test_that_was_removed.py", {"repository"}),
    ],
)
def test_what_a_file_needs(path: str, expected: set[str]) -> None:
    assert changed.needed([path]) == {f"tests/{test}" for test in expected}


def test_the_table_names_what_exists() -> None:
    for start, tests in changed.NEEDS.items():
        assert (ROOT / start).exists(), start
        for test in tests:
            assert (ROOT / "tests" / test).exists(), test


def test_what_others_have_changed_on_main_needs_no_tests_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed, "ROOT", tmp_path)

    def git(*words: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text(name)  # files that are equal would count as renamed
        git("add", name)
        git("commit", "-m", name)

    git("init", "-b", "main")
    commit("shared.py")
    git("checkout", "-b", "feature")
    commit("committed.py")
    (tmp_path / "new.py").touch()
    git("checkout", "main")
    commit("theirs.py")
    git("checkout", "feature")
    assert changed.changed_since("main") == ["committed.py", "new.py"]


def test_a_commit_that_is_none() -> None:
    with pytest.raises(pytest.UsageError, match="--changed=no-such-commit: "):
        changed.changed_since("no-such-commit")
