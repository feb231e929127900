"""The main job: torchrun, the dot-list entry, the real edited host, RLDS data, two ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.configs import RLDS_CAMERAS, make_rlds_config, write_config
from tests.hosts import FINISHED, Host, Result, require_clean, torchrun
from tests.runs import checkpoints, digests, epoch_logs, load, run_directory

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EPOCHS, BATCH = 2, 4


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
    """Two epochs of one pass each: what is left of one opens the next."""
    _, _, (zero, one) = trained
    windows, step = zero["windows"], 2 * BATCH
    assert len(zero["indices"]) == len(one["indices"]) == EPOCHS * windows // step * BATCH
    for number in range(EPOCHS):
        # A rank's share of a pass begins where its last one ended; over the run both get the same
        # to within one window.
        ends = [[(n * windows + rank) // 2 for rank in range(2)] for n in (number, number + 1)]
        drawn = [
            index
            for rank, start, stop in zip((zero, one), *ends)
            for index in rank["indices"][start:stop]
        ]
        assert len(set(drawn)) == len(drawn) <= windows
        assert windows - len(drawn) < (1 if number < EPOCHS - 1 else step)


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


@pytest.mark.bad_input
def test_a_file_that_is_cut_off_is_one_clear_error(
    config: Path, demo_dataset: Path, host_copy: Host, tmp_path: Path
) -> None:
    shutil.copytree(demo_dataset, tmp_path / "data")
    file = sorted((tmp_path / "data").rglob("*tfrecord*"))[3]
    file.write_bytes(file.read_bytes()[:-77])
    settings = [f"load_from={config}", f"train.output_dir={tmp_path / 'runs'}"]
    settings.append(f"train.data_path={tmp_path / 'data'}")
    result = torchrun(host_copy, "robomimic.scripts.train_rlds", *settings)
    assert result.returncode != 0 and not result.timed_out and not result.leftovers, result
    assert str(file) in result.stderr.partition("Root Cause")[2], result
    assert FINISHED not in result.stdout and not result.abort_texts(), result
