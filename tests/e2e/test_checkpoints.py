"""A checkpoint from any mode trains on in any other, optimizer included, and in the host that was
never edited.

Weights must come out as they went in: each continuation has a learning rate and weight decay of 0.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.distributed.gradients import fsdp
from tests.configs import frozen_from, make_config, merged, write_config
from tests.hosts import FINISHED, Host, Result, python, require_clean, torchrun
from tests.runs import load, require_equal_weights, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
SHARDED = () if fsdp.why_not("cpu") else ("fsdp",)


@pytest.fixture(scope="module")
def train(host_copy: Host, plain_host: Host, low_dim_dataset: Path) -> Callable[..., Result]:
    """`train(mode, folder, changes, *more)`: a run below `folder`. mode: "ddp" and "fsdp" are two
    ranks under torchrun, "dp" DataParallel on the CPU, "plain" the host that was never edited.
    """

    def run(mode: str, folder: Path, changes: Any = None, *more: str) -> Result:
        config = make_config("diffusion_policy", low_dim_dataset, folder / "runs", changes)
        file = write_config(folder / "cfg.json", config)
        added = {"ROBOMIMIC_DDP_MODE": mode} if mode in ("dp", "fsdp") else None
        start = torchrun if mode in ("ddp", "fsdp") else python
        host = plain_host if mode == "plain" else host_copy
        result = start(host, "robomimic.scripts.train", "--config", file, *more, added=added)
        require_clean(result)
        assert FINISHED in result.stdout
        return result

    return run


@pytest.fixture(scope="module")
def written(tmp_path_factory: Any, train: Callable[..., Result]) -> dict[str, Path]:
    """mode -> run directory of a short run."""
    directories = {}
    for mode in ("ddp", "plain", *SHARDED):
        folder = tmp_path_factory.mktemp(mode)
        train(mode, folder)
        directories[mode] = run_directory(folder / "runs")
    return directories


def require_layout(ours: Path, plain: Path) -> None:
    """The checkpoint `ours` has what the unedited host's has, in its order, and nothing else."""
    found, expected = load(ours), load(plain)
    assert set(found) == set(expected) and found["config"].count('"ddp"') == 0
    for part in ("nets", "ema"):
        assert list(found["model"][part]) == list(expected["model"][part])


def test_layout_is_the_hosts_in_every_mode(written: dict[str, Path]) -> None:
    """Of DataParallel: below."""
    for mode in ("ddp", *SHARDED):
        checkpoint = written[mode] / "last.pth"
        require_layout(checkpoint, written["plain"] / "last.pth")
        optimizer = load(checkpoint)["model"]["optimizers"]["policy"]
        assert {int(state["step"]) for state in optimizer["state"].values()} == {6}


@pytest.mark.parametrize(
    "readers",
    [
        ("ddp", "dp", "plain"),
        *(pytest.param((mode, "plain"), marks=pytest.mark.slow) for mode in SHARDED),
    ],
)
def test_weights_start_another_run(readers, written, train, tmp_path) -> None:
    """Each run begins from the last one's checkpoint, the first from the unedited host's."""
    first = source = written["plain"] / "last.pth"
    for mode in readers:
        changes = merged(frozen_from(source), {"train": {"seed": 99}})
        (tmp_path / mode).mkdir()
        begun = train(mode, tmp_path / mode, changes)
        assert f"LOADING MODEL WEIGHTS FROM {source}" in begun.stdout
        source = run_directory(tmp_path / mode / "runs") / "last.pth"
        require_equal_weights(first, source)
        require_layout(source, first)


@pytest.mark.parametrize(
    "writer, reader",
    [
        ("plain", "ddp"),
        *((mode, "plain") for mode in SHARDED),
        *(pytest.param("plain", mode, marks=pytest.mark.slow) for mode in SHARDED),
    ],
)
def test_the_optimizer_resumes(writer, reader, written, train, tmp_path) -> None:
    """The host's own --resume: moments and step counts continue, six steps more."""
    shutil.copytree(written[writer].parents[1], tmp_path / "runs")
    directory = run_directory(tmp_path / "runs")
    before = load(directory / "last.pth")["model"]["optimizers"]["policy"]["state"]
    result = train(reader, tmp_path, {"train": {"num_epochs": 4}}, "--resume")
    assert "resuming training from epoch 3" in result.stdout
    after = load(directory / "last.pth")
    for index, state in after["model"]["optimizers"]["policy"]["state"].items():
        assert int(state["step"]) == int(before[index]["step"]) + 6
    assert after["variable_state"]["epoch"] == 4
