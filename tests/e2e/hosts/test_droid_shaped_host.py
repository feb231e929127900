"""A host of DROID's shape: edited, trained on two ranks, its checkpoints still its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.configs import frozen_from, make_config, merged, write_config
from tests.droid_host import droid_shaped
from tests.hosts import FINISHED, Host, Result, python, require_clean, torchrun
from tests.runs import checkpoints, digests, load, require_equal_weights, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
WATCHED = "tests.e2e.entries.watched_train"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The host before `apply`."""
    return droid_shaped(tmp_path_factory.mktemp("droid-plain"))


def train(host: Host, folder: Path, config: dict[str, Any], **options: Any) -> Result:
    """One watched run; reports go into `folder`/reports."""
    file = write_config(folder / "config.json", config)
    return torchrun(host, WATCHED, folder / "reports", "none", "--config", file, **options)


def reports(folder: Path) -> list[dict[str, Any]]:
    paths = [folder / "reports" / f"rank{rank}.json" for rank in range(2)]
    return [json.loads(path.read_text()) for path in paths]


@pytest.fixture(scope="module")
def trained(
    droid_copy: Host, image_dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a run on two ranks from HDF5 data."""
    folder = tmp_path_factory.mktemp("droid-run")
    changes = {"train": {"hdf5_cache_mode": "low_dim"}}
    config = make_config("diffusion_policy_images", image_dataset, folder / "runs", changes)
    require_clean(train(droid_copy, folder, config))
    return folder


def test_two_ranks_train_one_model_in_the_hosts_own_layout(trained: Path) -> None:
    zero, one = reports(trained)
    for key in ("parameters", "ema", "logs"):
        assert zero[key] == one[key]
    assert not set(zero["losses"]) & set(one["losses"])
    directory = run_directory(trained / "runs")
    assert {"logs", "models", "videos", "vis"} <= {path.name for path in directory.iterdir()}
    assert len(checkpoints(directory)) == 4
    saved = load(directory / "last.pth")["model"]
    assert digests(saved["nets"]) == zero["parameters"]
    for name in [*saved["nets"], *saved["ema"]]:
        assert name.startswith(("policy.obs_encoder.module.", "policy.noise_pred_net.module."))
        assert name.count("module.") == 1


def test_the_unedited_host_resumes_from_it(
    trained: Path, plain: Host, image_dataset: Path, tmp_path: Path
) -> None:
    source = run_directory(trained / "runs") / "last.pth"
    output = tmp_path / "runs"
    config = make_config("diffusion_policy_images", image_dataset, output, frozen_from(source))
    file = write_config(tmp_path / "config.json", config)
    result = python(plain, "robomimic.scripts.train", "--config", file)
    require_clean(result)
    assert FINISHED in result.stdout, result
    require_equal_weights(source, run_directory(output) / "last.pth")


def rlds_config(data: Path, folder: Path) -> dict[str, Any]:
    """The host's own pipeline, on the made-up data in DROID's schema."""
    config = make_config("diffusion_policy", data, folder / "runs")
    more = {
        "experiment": {"validate": False, "save": {"on_best_validation": False}},
        "train": {
            "data": [],
            "data_format": "droid_rlds",
            "data_path": str(data),
            "dataset_names": ["made_up"],
            "sample_weights": [1.0],
            "shuffle_buffer_size": 20,
        },
        "observation": {"modalities": {"obs": {"low_dim": ["position"]}}},
    }
    config = merged(config, more)
    del config["train"]["hdf5_filter_key"], config["train"]["hdf5_validation_filter_key"]
    return config


@pytest.fixture(scope="module")
def rlds_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for train.data_path."""
    pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
    from tests.rlds.conftest import write

    folder = tmp_path_factory.mktemp("droid-rlds")
    write(folder)
    return folder


@pytest.mark.slow
def test_two_ranks_train_from_the_hosts_own_rlds_pipeline(
    droid_copy: Host, rlds_data: Path, tmp_path: Path
) -> None:
    result = train(droid_copy, tmp_path, rlds_config(rlds_data, tmp_path), rlds=True)
    require_clean(result)
    zero, one = reports(tmp_path)
    assert zero["parameters"] == one["parameters"] and zero["ema"] == one["ema"]
    assert zero["logs"] == one["logs"] and len(zero["logs"]) == 2
    assert not set(zero["losses"]) & set(one["losses"])
    assert "each rank on its share of episodes" in result.stdout
    run = run_directory(tmp_path / "runs")
    kept = json.loads((run / "config.json").read_text())
    assert "data_cache_dir" not in kept["train"], "the host has its own RLDS keys"


def test_one_process_trains_from_it_as_the_unedited_host_does(
    droid_copy: Host, rlds_data: Path, tmp_path: Path
) -> None:
    """Nothing asks for the dataset's length, which fails in DROID's code."""
    config = rlds_config(rlds_data, tmp_path)
    config["ddp"] = {"debug": True}
    file = write_config(tmp_path / "config.json", config)
    result = python(droid_copy, "robomimic.scripts.train", "--config", file, rlds=True)
    require_clean(result)
    assert FINISHED in result.stdout and "a stream without length" in result.stdout, result
