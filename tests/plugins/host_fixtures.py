"""Fixtures: hosts copied and edited once for a session, data sets, and configurations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.configs import ConfigMaker, make_config, uses_images, write_config


@pytest.fixture(scope="session")
def plain_host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A copy of the installed robomimic, unedited but for the small diffusion net."""
    from tests.hosts import copy_host

    return copy_host(tmp_path_factory.mktemp("plain-host"))


@pytest.fixture(scope="session")
def host_copy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same copy after `robomimic-ddp apply`."""
    from tests.hosts import apply, copy_host

    return apply(copy_host(tmp_path_factory.mktemp("edited-host")))


@pytest.fixture(scope="session")
def low_dim_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes without pictures."""
    from tests.datasets import make_hdf5

    return make_hdf5(tmp_path_factory.mktemp("data") / "low_dim.hdf5")


@pytest.fixture(scope="session")
def image_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes with one camera of 32x32 pixels."""
    from tests.datasets import make_hdf5

    return make_hdf5(tmp_path_factory.mktemp("data") / "images.hdf5", image_size=32)


@pytest.fixture(scope="session")
def demo_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo task's RLDS data set in small; the folder for train.data_path."""
    pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
    from robomimic_ddp.demo.write_dataset import write_demo_dataset

    folder = tmp_path_factory.mktemp("demo-rlds")
    write_demo_dataset(str(folder), 20, seed=0, files=6, height=36, width=64)
    return folder


@pytest.fixture
def config_file(tmp_path: Path, low_dim_dataset: Path, image_dataset: Path) -> ConfigMaker:
    """Makes a JSON file: `config_file(variant, changes)`; runs write into `tmp_path / "runs"`."""

    def make(variant: str, changes: Mapping[str, Any] | None = None) -> Path:
        dataset = image_dataset if uses_images(variant) else low_dim_dataset
        config = make_config(variant, dataset, tmp_path / "runs", changes)
        return write_config(tmp_path / f"{variant}.json", config)

    return make
