"""`--changed`: which tests a changed file needs."""

from __future__ import annotations

import pytest

from tests.hosts import ROOT
from tests.plugins import changed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("README.md", {"repository", "e2e/docs/test_docs.py"}),
        ("patches/engine.py", {"repository", "fixers", "patches"}),
        ("robomimic_ddp/data/sampling/sampler.py", {"repository", "data"}),
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


def test_a_commit_that_is_none() -> None:
    with pytest.raises(pytest.UsageError, match="--changed=no-such-commit: "):
        changed.changed_since("no-such-commit")
