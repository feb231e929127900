"""Fixtures of the patch tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patches.support import commit_all, copy_installed, write_host


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The package folder of a fresh small host, in a new repository folder."""
    return write_host(tmp_path / "repository")


@pytest.fixture
def checkout(host: Path) -> Path:
    """The small host, committed; the repository's folder."""
    return commit_all(host.parent)


@pytest.fixture(scope="module")
def robomimic_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package folder of a copy of the installed robomimic; a module's tests share it."""
    pytest.importorskip("h5py", reason="praxis-robomimic is not installed")
    return copy_installed(tmp_path_factory.mktemp("installed"))
