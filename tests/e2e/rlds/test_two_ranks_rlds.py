"""The main job: torchrun, the dot-list entry, the real edited host, RLDS data, two ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.configs import RLDS_CAMERAS, RLDS_STATES, make_rlds_config, write_config
from tests.hosts import FINISHED, Host, Result, require_clean, torchrun
from tests.runs import checkpoints, digests, epoch_logs, load, run_directory

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EPOCHS, BATCH = 3, 4


@pytest.fixture(scope="module")
def config(demo_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small image policy on it, as a user writes it: whole passes, with validation."""
    folder = tmp_path_factory.mktemp("config")
    changes = {
        "experiment": {"epoch_every_n_steps": None, "validation_epoch_every_n_steps": None},
        "train": {"validation_fraction": 0.2, "batch_size": 2, "num_epochs": EPOCHS},
    }
    made = make_rlds_config(demo_dataset, folder / "runs", changes)
    return write_config(folder / "config.json", made)


@pytest.fixture(scope="module")
def trained(
    config: Path, host_copy: Host, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Result, list[dict[str, Any]]]:
    """(folder of runs, result, each rank's report); the batch size of the command line wins."""
    folder = tmp_path_factory.mktemp("main-job")
    result = torchrun(
        host_copy, "tests.e2e.entries.watched_rlds", folder / "reports", f"load_from={config}",
        f"train.batch_size={BATCH}", f"train.output_dir={folder / 'runs'}",
        timeout=400.0,
    )  # fmt: skip
    require_clean(result)
    reports = [json.loads((folder / "reports" / f"rank{k}.json").read_text()) for k in range(2)]
    return folder / "runs", result, reports


def test_one_run_with_one_log_and_equal_parameters(trained: Any) -> None:
    output, result, (zero, one) = trained
    directory = run_directory(output)
    assert result.stdout.count(FINISHED) == 1
    assert len(epoch_logs(directory)) == 2 * EPOCHS
    for key in ("parameters", "ema", "logs"):
        assert zero[key] == one[key]
    assert zero["torch_random"] != one["torch_random"]
    assert not set(zero["losses"]) & set(one["losses"])
    assert digests(load(run_directory(output) / "last.pth")["model"]["nets"]) == zero["parameters"]
    kept = json.loads((directory / "config.json").read_text())
    assert kept["train"]["batch_size"] == BATCH and "ddp" not in kept
    assert kept["train"]["data"][0]["path"].endswith("reach_demo/1.1.0")
    assert {"last.pth", "last_bak.pth"} < set(checkpoints(directory))


def test_every_window_of_a_pass_comes_once_over_both_ranks(trained: Any) -> None:
    """Three epochs of one pass each: what is left of one opens the next."""
    _, _, (zero, one) = trained
    windows, step = zero["windows"], 2 * BATCH
    assert len(zero["indices"]) == len(one["indices"]) == EPOCHS * windows // step * BATCH
    for number in range(EPOCHS - 1):
        # A rank's share of a pass begins where its last one ended; over the run both get the same
        # to within one window.
        ends = [[(n * windows + rank) // 2 for rank in range(2)] for n in (number, number + 1)]
        drawn = [
            index
            for rank, start, stop in zip((zero, one), *ends)
            for index in rank["indices"][start:stop]
        ]
        assert len(set(drawn)) == len(drawn) == windows


def test_validation_windows_come_once_and_are_not_trained_on(trained: Any) -> None:
    _, _, (zero, one) = trained
    count = zero["valid_windows"]
    assert count > 0
    seen = zero["valid_indices"] + one["valid_indices"]
    assert len(seen) == EPOCHS * count and len(set(seen)) == count
    assert not set(seen) & set(zero["indices"] + one["indices"])


def test_decoded_frames_are_the_delivered_ones(trained: Any) -> None:
    output, _, reports = trained
    outcome = json.loads((run_directory(output) / "ddp.json").read_text())["outcome"]
    assert outcome["frames_decoded"] == outcome["frames_delivered"]
    assert outcome["frames_delivered"] == sum(report["frames_delivered"] for report in reports)
    assert outcome["steps"] == len(reports[0]["indices"]) // BATCH
    assert outcome["gradients_equal"] is True and outcome["noise_differs"] is True
    for report in reports:
        assert report["frames_delivered"] == len(report["indices"]) * 2 * len(RLDS_CAMERAS)
        ahead = report["frames_prefetched"]
        assert report["frames_decoded"] == report["frames_delivered"] + ahead
        assert ahead <= 4 * BATCH * 2 * len(RLDS_CAMERAS)


def test_neither_rank_nor_reader_loads_tensorflow(trained: Any) -> None:
    """Which is installed here. The reader needs no /dev/shm, which is small in containers."""
    for report in trained[2]:
        rank, reader = report["libraries"]
        assert "libtorch" in rank and "_pywrap_tensorflow" not in rank
        assert reader == ["simplejpeg"]


def test_images_stay_uint8_until_on_the_device(trained: Any) -> None:
    for report in trained[2]:
        moved = report["moved"]
        assert [moved[camera] for camera in RLDS_CAMERAS] == ["torch.uint8"] * len(RLDS_CAMERAS)
        assert "torch.uint8" not in [moved[state] for state in RLDS_STATES]


@pytest.mark.slow
def test_a_mixture_trains_with_validation(
    config: Path, demo_dataset: Path, host_copy: Host, tmp_path: Path
) -> None:
    """The dataset twice under two names, one window of the second to three of the first."""
    shutil.copytree(demo_dataset / "reach_demo", tmp_path / "data" / "first")
    shutil.copytree(demo_dataset / "reach_demo", tmp_path / "data" / "second")
    result = torchrun(
        host_copy, "robomimic.scripts.train_rlds", f"load_from={config}",
        f"train.data_path={tmp_path / 'data'}", "train.dataset_names=[first,second]",
        "train.sample_weights=[3,1]", "train.num_epochs=1", "experiment.epoch_every_n_steps=4",
        f"train.output_dir={tmp_path / 'runs'}", timeout=400.0,
    )  # fmt: skip
    require_clean(result)
    assert "25.0% of the samples" in result.stdout
    directory = run_directory(tmp_path / "runs")
    assert set(epoch_logs(directory)) == {("Train", 1), ("Validation", 1)}
    outcome = json.loads((directory / "ddp.json").read_text())["outcome"]
    assert outcome["frames_decoded"] == outcome["frames_delivered"] > 0
    kept = json.loads((directory / "config.json").read_text())
    assert [entry["weight"] for entry in kept["train"]["data"]] == [3.0, 1.0]


@pytest.mark.slow
@pytest.mark.bad_input
def test_damaged_episodes_are_left_out_on_request(
    config: Path, demo_dataset: Path, host_copy: Host, tmp_path: Path
) -> None:
    shutil.copytree(demo_dataset, tmp_path / "data")
    file = sorted((tmp_path / "data").rglob("*tfrecord*"))[3]
    file.write_bytes(file.read_bytes()[:-77])
    result = torchrun(
        host_copy, "robomimic.scripts.train_rlds", f"load_from={config}", "ddp.skip_corrupt=true",
        f"train.data_path={tmp_path / 'data'}", "train.num_epochs=1",
        "experiment.epoch_every_n_steps=3", f"train.output_dir={tmp_path / 'runs'}",
        timeout=400.0,
    )  # fmt: skip
    require_clean(result)
    said = "1 of 20 episodes of reach_demo/1.1.0 are left out, as they are damaged, cut off"
    text = result.stdout + result.stderr  # the host's text log takes stderr along
    assert text.count(said) == 1 and f"infinity: 1 of {file}" in text


@pytest.mark.bad_input
@pytest.mark.parametrize("mistake", ["missing", "cut off"])
def test_bad_data_is_one_clear_error(
    mistake: str, config: Path, demo_dataset: Path, host_copy: Host, tmp_path: Path
) -> None:
    settings = [f"load_from={config}", f"train.output_dir={tmp_path / 'runs'}"]
    if mistake == "missing":
        settings.append("train.dataset_names=[droid]")
        expected = "there is no dataset 'droid'"
    else:
        shutil.copytree(demo_dataset, tmp_path / "data")
        file = sorted((tmp_path / "data").rglob("*tfrecord*"))[3]
        file.write_bytes(file.read_bytes()[:-77])
        settings.append(f"train.data_path={tmp_path / 'data'}")
        expected = str(file)
    result = torchrun(host_copy, "robomimic.scripts.train_rlds", *settings)
    assert result.returncode != 0 and not result.timed_out and not result.leftovers, result
    assert expected in result.stderr.partition("Root Cause")[2], result
    assert FINISHED not in result.stdout and not result.abort_texts(), result
