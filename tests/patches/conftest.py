"""Fixtures of the patch tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.patches.support import commit_all, write_host


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The package folder of a fresh small host, in a new repository folder."""
    return write_host(tmp_path / "repository")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package folder of an importable robomimic."""
    package = write_host(tmp_path / "lib" / "site-packages")
    monkeypatch.delitem(sys.modules, "robomimic", raising=False)
    monkeypatch.syspath_prepend(package.parent)
    return package


@pytest.fixture
def checkout(host: Path) -> Path:
    """The small host, committed; the repository's folder."""
    return commit_all(host.parent)
