"""Fixtures: hosts copied and edited once for a session, datasets, and configurations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.configs import ConfigMaker, make_config, merged, uses_images, write_config


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`once(name, make)`: a folder that `make(folder)` has filled, shared by all workers of a run:
    who comes first makes it, under a lock.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def folder(name: str, make: Callable[[Path], Any]) -> Path:
        made, done = root / name, root / f"{name}.done"
        with FileLock(root / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(made, ignore_errors=True)
                made.mkdir()
                make(made)
                done.touch()
        return made

    return folder


@pytest.fixture(scope="session")
def plain_host(once: Callable[..., Path]) -> Any:
    """A copy of the installed robomimic, unedited but for the small diffusion net."""
    from tests.hosts import Host, copy_host

    return Host(once("plain-host", copy_host))


@pytest.fixture(scope="session")
def host_copy(once: Callable[..., Path]) -> Any:
    """The same copy after `robomimic-ddp apply`."""
    from tests.hosts import Host, apply, copy_host

    return Host(once("edited-host", lambda folder: apply(copy_host(folder))))


@pytest.fixture(scope="session")
def droid_copy(once: Callable[..., Path]) -> Any:
    """A host of DROID's shape after `robomimic-ddp apply`."""
    from tests.droid_host import droid_shaped
    from tests.hosts import Host, apply

    return Host(once("edited-droid", lambda folder: apply(droid_shaped(folder))))


@pytest.fixture(scope="session")
def host_ranks() -> Iterator[Any]:
    """Ranks that import `host_copy`; those of `ranks` import the installed robomimic."""
    from tests.ranks.pool import RankPool

    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[Any]:
    """New workers: others have imported another host by then, or have TensorFlow's threads, which a
    data worker that is forked does not survive.
    """
    from tests.ranks.pool import RankPool

    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def old_training_utils(once: Callable[..., Path]) -> str:
    """Path of diffusers 0.11.1's training_utils.py, which needs only torch and numpy."""

    def install(folder: Path) -> None:
        words = ["pip", "install", "-q", "--no-deps", "--target", folder, "diffusers==0.11.1"]
        subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True, timeout=300)

    return str(once("old-diffusers", install) / "diffusers" / "training_utils.py")


@pytest.fixture(scope="session")
def low_dim_dataset(once: Callable[..., Path]) -> Path:
    """Six episodes without pictures."""
    from tests.datasets import make_hdf5

    name = "low_dim.hdf5"
    return once("low-dim", lambda folder: make_hdf5(folder / name)) / name


@pytest.fixture(scope="session")
def image_dataset(once: Callable[..., Path]) -> Path:
    """Six episodes with one camera of 32x32 pixels."""
    from tests.datasets import make_hdf5

    return (
        once("images", lambda folder: make_hdf5(folder / "data.hdf5", image_size=32)) / "data.hdf5"
    )


@pytest.fixture(scope="session")
def demo_dataset(once: Callable[..., Path]) -> Path:
    """The demo task's RLDS dataset in small; the folder for train.data_path."""
    pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
    from scripts.demo.demonstrations import write_demo_dataset

    size = {"files": 6, "height": 36, "width": 64}
    return once("demo-rlds", lambda folder: write_demo_dataset(folder, 20, seed=0, **size))


@pytest.fixture(scope="session")
def four_epochs(low_dim_dataset: Path) -> Callable[..., Path]:
    """`four_epochs(folder, **changes)`: the config file of a low-dim diffusion policy's run below
    `folder`, four epochs of three steps, a state after each.
    """

    def make(folder: Path, **changes: Any) -> Path:
        folder.mkdir(exist_ok=True)
        every_epoch = {"train": {"num_epochs": 4}, "ddp": {"save_seconds": 0}}
        changes = merged(every_epoch, changes)
        made = make_config("diffusion_policy", low_dim_dataset, folder / "runs", changes)
        return write_config(folder / "config.json", made)

    return make


@pytest.fixture
def config_file(tmp_path: Path, low_dim_dataset: Path, image_dataset: Path) -> ConfigMaker:
    """Makes a JSON file: `config_file(variant, changes)`; runs write into `tmp_path / "runs"`."""

    def make(variant: str, changes: Mapping[str, Any] | None = None) -> Path:
        dataset = image_dataset if uses_images(variant) else low_dim_dataset
        config = make_config(variant, dataset, tmp_path / "runs", changes)
        return write_config(tmp_path / f"{variant}.json", config)

    return make


@pytest.fixture
def command(capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """Runs `robomimic-ddp` in this process: (exit code, standard output, standard error)."""
    from robomimic_ddp import cli

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = stop.code
        return (code, *capsys.readouterr())

    return run
