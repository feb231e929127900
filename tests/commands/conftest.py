"""A node's GPUs, and sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.commands.launch import devices
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


@pytest.fixture
def node_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """`node_with(n)`: from now on nvidia-smi lists n GPUs."""

    def set_up(gpus: int) -> None:
        tool = tmp_path / "nvidia-smi"
        lines = "".join(f'echo "GPU {index}: H"; echo "  MIG 1g: x"; ' for index in range(gpus))
        tool.write_text(f'#!/bin/sh\n[ "$1" = --list-gpus ] || exit 1\n{lines}\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        devices.installed_gpus.cache_clear()

    yield set_up
    devices.installed_gpus.cache_clear()
