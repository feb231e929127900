"""A host with an added simulator, and a run that was trained in it with rollouts on two ranks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.configs import make_config, write_config
from tests.evaluate.point_env import add_to
from tests.hosts import Host, Result, python, require_clean, torchrun
from tests.runs import run_directory

EPISODES = 6
CHANGES = {
    "experiment": {
        "rollout": {"enabled": True, "n": EPISODES, "horizon": 6, "rate": 1, "warmstart": 0},
    },
    "train": {"num_epochs": 2},
}


@dataclass(frozen=True)
class Job:
    """A host and a run that was trained with it. `evaluate` runs the command on the run."""

    host: Host
    run: Path

    def evaluate(self, *words: object, **options: Any) -> Result:
        return python(self.host, "robomimic_ddp", "evaluate", self.run, *words, **options)


def with_simulator(host: Host, folder: Path) -> None:
    """Makes `folder` a copy of the host that has the simulator, too."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(host.folder, folder, dirs_exist_ok=True, ignore=ignored)
    add_to(Host(folder).package)


@pytest.fixture(scope="session")
def point_host(once: Callable[..., Path], host_copy: Host) -> Host:
    """An edited host that has the simulator."""
    return Host(once("point-host", lambda folder: with_simulator(host_copy, folder)))


@pytest.fixture(scope="session")
def trained(once: Callable[..., Path], point_host: Host, low_dim_dataset: Path) -> Path:
    """The folder of the run: two epochs with six episodes after each, split over two ranks."""

    def make(folder: Path) -> None:
        config = make_config("bc", low_dim_dataset, folder / "runs", CHANGES)
        file = write_config(folder / "config.json", config)
        require_clean(torchrun(point_host, "robomimic.scripts.train", "--config", file))

    return run_directory(once("evaluated-run", make) / "runs")


@pytest.fixture
def plain(job: Job, once: Callable[..., Path], plain_host: Host) -> Job:
    """The same run with an unedited host."""
    folder = once("plain-point-host", lambda folder: with_simulator(plain_host, folder))
    return Job(Host(folder), job.run)


@pytest.fixture
def job(trained: Path, point_host: Host, tmp_path: Path) -> Job:
    """The host with a copy of the run."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    return Job(point_host, run)
