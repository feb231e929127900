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
from tests.hosts import Host, Result, apply, copy_host, python, require_clean, torchrun
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


@pytest.fixture(scope="session")
def point_host(once: Callable[..., Path]) -> Host:
    """An edited host that has the simulator."""

    def make(folder: Path) -> None:
        host = copy_host(folder)
        add_to(host.package)
        apply(host)

    return Host(once("point-host", make))


@pytest.fixture(scope="session")
def trained(once: Callable[..., Path], point_host: Host, low_dim_dataset: Path) -> Path:
    """The folder of the run: two epochs with six episodes after each, split over two ranks."""

    def make(folder: Path) -> None:
        config = make_config("bc", low_dim_dataset, folder / "runs", CHANGES)
        file = write_config(folder / "config.json", config)
        require_clean(torchrun(point_host, "robomimic.scripts.train", "--config", file))

    return run_directory(once("evaluated-run", make) / "runs")


@pytest.fixture
def plain(job: Job, once: Callable[..., Path]) -> Job:
    """The same run with an unedited host."""

    def make(folder: Path) -> None:
        add_to(copy_host(folder).package)

    return Job(Host(once("plain-point-host", make)), job.run)


@pytest.fixture
def job(trained: Path, point_host: Host, tmp_path: Path) -> Job:
    """The host with a copy of the run."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    return Job(point_host, run)
