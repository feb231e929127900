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
OF_ONE_LAYOUT = [("ddp", "single"), ("ddp", "dp"), ("dp", "ddp")]
"""Every mode reads the host's file, and all modes write its layout: the tests that are not slow."""


@pytest.fixture(scope="module")
def train(host_copy: Host, plain_host: Host, image_dataset: Path) -> Callable[..., Result]:
    """`train(mode, folder, changes, *more)`: a run below `folder`. mode: "ddp" and "fsdp" are two
    ranks under torchrun, "dp" DataParallel on the CPU, "single" one process, "plain" one of the
    host that was never edited.
    """

    def run(mode: str, folder: Path, changes: Any = None, *more: str) -> Result:
        config = make_config("diffusion_policy_images", image_dataset, folder / "runs", changes)
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
    for mode in ("ddp", "dp", "plain", *SHARDED):
        folder = tmp_path_factory.mktemp(mode)
        train(mode, folder)
        directories[mode] = run_directory(folder / "runs")
    return directories


def test_layout_is_the_hosts_in_every_mode(written: dict[str, Path]) -> None:
    plain = load(written["plain"] / "last.pth")
    for mode in ("ddp", "dp", *SHARDED):
        ours = load(written[mode] / "last.pth")
        assert set(ours) == set(plain)
        for part in ("nets", "ema"):
            assert list(ours["model"][part]) == list(plain["model"][part])
        assert ours["config"].count('"ddp"') == 0
        steps = {
            int(state["step"]) for state in ours["model"]["optimizers"]["policy"]["state"].values()
        }
        assert steps == {6}


@pytest.mark.parametrize(
    "writer, reader",
    [
        ("ddp", "plain"),
        ("dp", "plain"),
        ("plain", "ddp"),
        ("plain", "dp"),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OF_ONE_LAYOUT),
        *(pytest.param(mode, "plain", marks=pytest.mark.slow) for mode in SHARDED),
        *(pytest.param("plain", mode, marks=pytest.mark.slow) for mode in SHARDED),
    ],
)
def test_weights_start_another_run(writer, reader, written, train, tmp_path) -> None:
    source = written[writer] / "last.pth"
    changes = merged(frozen_from(source), {"train": {"seed": 99}})
    assert f"LOADING MODEL WEIGHTS FROM {source}" in train(reader, tmp_path, changes).stdout
    require_equal_weights(source, run_directory(tmp_path / "runs") / "last.pth")


@pytest.mark.parametrize(
    "writer, reader",
    [
        ("ddp", "single"),
        ("ddp", "plain"),
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
