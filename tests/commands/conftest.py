"""Fixtures of the sweep tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.commands.sweep import new, space, study
from tests.configs import make_config, write_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    data = tmp_path / "data.hdf5"
    data.touch()
    return write_config(tmp_path / "config.json", make_config("bc", data, tmp_path / "runs"))


@pytest.fixture
def make(tmp_path: Path, config: Path) -> Callable[..., study.Sweep]:
    """`make(*words, **options)`: a sweep in tmp_path / "sweep"."""

    def make_sweep(*words: str, **options: Any) -> study.Sweep:
        return new.make(tmp_path / "sweep", config, space.parse(words), **options)

    return make_sweep
