"""A checkpoint from any mode trains on in any other, optimizer included, and in the host that was
never edited.

Each continuation runs with a learning rate and weight decay of 0, so that weights must come out as
they went in.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.distributed import fsdp
from tests.configs import FROZEN, make_config, write_config
from tests.hosts import FINISHED, Host, Result, python, require_clean, torchrun
from tests.runs import load, require_equal_weights, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
MODULE = "robomimic.scripts.train"
SHARDED = () if fsdp.why_not("cpu") else ("fsdp",)


def train(host: Host, mode: str, *arguments: Any) -> Result:
    """mode: "ddp" and "fsdp" are two ranks under torchrun, "dp" DataParallel on the CPU, "single"
    and "plain" one process.
    """
    added = {"ROBOMIMIC_DDP_MODE": mode} if mode in ("dp", "fsdp") else None
    start = torchrun if mode in ("ddp", "fsdp") else python
    return start(host, MODULE, *arguments, added=added)


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: Any, host_copy: Host, plain_host: Host, image_dataset: Path
) -> dict[str, Path]:
    """mode -> run directory of a short run; "plain" is the host that was never edited."""
    directories = {}
    for mode in ("ddp", "dp", "plain", *SHARDED):
        folder = tmp_path_factory.mktemp(mode)
        config = write_config(
            folder / "cfg.json",
            make_config("diffusion_policy_images", image_dataset, folder / "runs"),
        )
        result = train(plain_host if mode == "plain" else host_copy, mode, "--config", config)
        require_clean(result)
        assert FINISHED in result.stdout
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
        ("ddp", "single"),
        ("ddp", "dp"),
        ("ddp", "plain"),
        ("dp", "plain"),
        ("plain", "ddp"),
        ("plain", "dp"),
        ("dp", "ddp"),
        *(pytest.param(mode, "plain", marks=pytest.mark.slow) for mode in SHARDED),
        *(pytest.param("plain", mode, marks=pytest.mark.slow) for mode in SHARDED),
    ],
)
def test_weights_start_another_run(
    writer, reader, written, host_copy, plain_host, image_dataset, tmp_path
) -> None:
    source = written[writer] / "last.pth"
    changes = {
        "algo": {"optim_params": {"policy": FROZEN}},
        "experiment": {"ckpt_path": str(source)},
        "train": {"num_epochs": 1, "seed": 99},
    }
    config = make_config("diffusion_policy_images", image_dataset, tmp_path / "runs", changes)
    result = train(
        plain_host if reader == "plain" else host_copy,
        reader,
        "--config",
        write_config(tmp_path / "c.json", config),
    )
    require_clean(result)
    assert f"LOADING MODEL WEIGHTS FROM {source}" in result.stdout and FINISHED in result.stdout
    after = load(run_directory(tmp_path / "runs") / "last.pth")["model"]["nets"]
    require_equal_weights(load(source)["model"]["nets"], after)


@pytest.mark.parametrize(
    "writer, reader",
    [
        ("ddp", "single"),
        ("ddp", "plain"),
        ("plain", "ddp"),
        ("ddp", "dp"),
        *((mode, "plain") for mode in SHARDED),
        *(pytest.param("plain", mode, marks=pytest.mark.slow) for mode in SHARDED),
    ],
)
def test_the_optimizer_resumes(
    writer, reader, written, host_copy, plain_host, image_dataset, tmp_path
) -> None:
    """The host's own --resume: moments and step counts continue, six steps more."""
    shutil.copytree(written[writer].parents[1], tmp_path / "runs")
    directory = run_directory(tmp_path / "runs")
    before = load(directory / "last.pth")["model"]["optimizers"]["policy"]["state"]
    changes = {"train": {"num_epochs": 4}}
    config = make_config("diffusion_policy_images", image_dataset, tmp_path / "runs", changes)
    longer = write_config(tmp_path / "longer.json", config)
    result = train(
        plain_host if reader == "plain" else host_copy, reader, "--config", longer, "--resume"
    )
    require_clean(result)
    assert "resuming training from epoch 3" in result.stdout and FINISHED in result.stdout
    after = load(directory / "last.pth")
    for index, state in after["model"]["optimizers"]["policy"]["state"].items():
        assert int(state["step"]) == int(before[index]["step"]) + 6
    assert after["variable_state"]["epoch"] == 4
