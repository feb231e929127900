"""Fixtures of the patch tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robomimic_ddp import cli
from tests.patches.support import copy_installed, write_host


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The package folder of a fresh small host, in a new repository folder."""
    return write_host(tmp_path / "repository")


@pytest.fixture(scope="module")
def robomimic_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package folder of a copy of the installed robomimic; a module's tests share it."""
    pytest.importorskip("h5py", reason="praxis-robomimic is not installed")
    return copy_installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def command(capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line in this process: (exit code, standard output, standard error)."""

    def run(*arguments) -> tuple[int, str, str]:
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run
