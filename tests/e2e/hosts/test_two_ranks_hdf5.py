"""Real torchrun, two ranks, the real edited host, HDF5: what a run leaves, and how it fails."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.monitoring.records import heartbeat, history
from tests.configs import ConfigMaker, make_config, write_config
from tests.hosts import FINISHED, Host, Result, require_clean, require_soon, torchrun
from tests.runs import checkpoints, digests, epoch_logs, load, run_directory
from tests.tiers import slow_but

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

# Read through __getitem__ at every step, so that the reports have the indices of each rank.
UNCACHED = {"train": {"hdf5_cache_mode": "low_dim"}}


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, host_copy: Host, image_dataset: Path
) -> tuple[Path, Result, list[dict[str, Any]]]:
    """(folder of runs, result, each rank's report) of one run on two ranks."""
    folder = tmp_path_factory.mktemp("two-ranks")
    config = make_config("diffusion_policy_images", image_dataset, folder / "runs", UNCACHED)
    file = write_config(folder / "config.json", config)
    watched = ("tests.e2e.entries.watched_train", folder / "reports", "none", "--config", file)
    result = torchrun(host_copy, *watched)
    require_clean(result)
    paths = [folder / "reports" / f"rank{rank}.json" for rank in range(2)]
    return folder / "runs", result, [json.loads(path.read_text()) for path in paths]


def test_one_run_directory_one_log_one_checkpoint(trained: Any) -> None:
    output, result, _ = trained
    directory = run_directory(output)
    assert len(list(output.rglob("config.json"))) == 1
    json.loads((directory / "config.json").read_text())
    assert {path.name for path in output.rglob("log.txt")} == {"log.txt"}
    assert len(list(output.rglob("events.out.tfevents*"))) == 1
    assert {"last.pth", "last_bak.pth"} < set(checkpoints(directory))
    assert len(checkpoints(directory)) == 4  # and one for each of two epochs
    assert not [path for path in output.rglob("*") if "tmp" in path.name], "a file half written"
    reported = heartbeat.read(directory)
    assert [(one["rank"], one["step"], one["finished"]) for one in reported] == [
        (0, 3, 1),
        (1, 3, 1),
    ]
    # The train log and the validation log of each epoch, printed once; the helper raises on two.
    assert len(epoch_logs(directory)) == 4
    assert result.stdout.count(FINISHED) == 1


def test_parameters_and_logs_are_equal_on_both_ranks(trained: Any) -> None:
    output, _, (zero, one) = trained
    assert zero["parameters"] == one["parameters"]
    assert zero["ema"] == one["ema"]
    assert zero["logs"] == one["logs"]
    assert len(zero["logs"]) == 4
    saved = load(run_directory(output) / "last.pth")["model"]
    assert digests(saved["nets"]) == zero["parameters"]
    assert digests(saved["ema"]) == zero["ema"]


def test_progress_and_pace_are_reported_once(trained: Any) -> None:
    output, result, _ = trained
    directory = run_directory(output)
    for text in (result.stdout, (directory / "logs" / "log.txt").read_text()):
        text = text[text.index("= robomimic-ddp =") :]  # after the bars of loading the data
        for epoch in (1, 2):
            line = re.findall(rf"epoch {epoch}: step 3/3, .* samples/s, loss .*, lr .*", text)
            assert len(line) == 1 and "| 3/3 [" not in text
    trained_epochs = [line for line in history.read(directory) if line["phase"] == "train"]
    assert len(trained_epochs) == 2
    for line in trained_epochs:
        assert line["log"]["Time_Samples_Per_Second"] > 0
        assert 0 < line["log"]["Time_Communication_Share"] <= 1
    events = b"".join(path.read_bytes() for path in output.rglob("events.out.tfevents*"))
    for name in (
        *("Samples_Per_Second", "Steps_Per_Second", "Data_Wait_Share", "Communication_Share"),
        *("Step_Slowest_Rank", "Step_Fastest_Rank"),
    ):
        assert f"Timing_Stats/Train_{name}".encode() in events, name


def test_one_block_says_what_is_going_to_happen(trained: Any) -> None:
    output, result, _ = trained
    assert result.stdout.count("= robomimic-ddp =") == 1
    beginning, hosts = (result.stdout.index(word) for word in ("-ddp: plan =", "Run with Config ="))
    assert beginning < hosts and "node 1 of" not in result.stderr
    block = result.stdout.split("= robomimic-ddp =")[1].split("\n\n")[0]
    for line in (
        r"mode: DistributedDataParallel, 2 rank\(s\), on the CPU",
        r"devices: cpu, 2 rank\(s\) on each of 1 node\(s\); gradients over gloo",
        r"batch: 4 per rank x 2 = 8 samples per step \(train.batch_size=4\)",
        r"data workers: 0 per rank x 2 rank\(s\) on this node",
        r"learning rate: 0.0001, as configured; ddp.lr_scaling=none \(the default here; .*\); "
        r"by each rule: none 0.0001, linear 0.0",
        r"schedule: 2 epoch\(s\) of 3 step\(s\)",
        r"data: \S+\.hdf5; \d+ samples over all ranks; a pass is \d+ steps",
        r"precision: fp32",
        r"preset: fast \(",
        rf"run directory: {run_directory(output)}",
    ):
        assert len(re.findall(rf"^{line}", block, re.MULTILINE)) == 1, (line, block)


def test_random_numbers_and_data_differ(trained: Any) -> None:
    _, _, (zero, one) = trained
    assert zero["torch_random"] != one["torch_random"]
    assert len(zero["losses"]) == len(one["losses"])
    assert not set(zero["losses"]) & set(one["losses"])
    steps, batch = 3, 4
    for epoch in range(2):
        # 43 windows in the train episodes: the 24 of an epoch are the beginning of one pass.
        part = slice(epoch * steps * batch, (epoch + 1) * steps * batch)
        drawn = Counter(zero["indices"][part] + one["indices"][part])
        assert sum(drawn.values()) == 2 * steps * batch
        assert max(drawn.values()) == 1


FAULTS = ("datasets@1", "step@1", "log@1", "validation@1", "save@0")


@pytest.mark.planted_fault
@pytest.mark.parametrize("fault", slow_but({"step@1", "save@0"}, FAULTS))
def test_a_fault_on_one_rank_ends_the_job_and_is_the_root_cause(
    fault: str, host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    file = config_file("diffusion_policy", UNCACHED)
    watched = ("tests.e2e.entries.watched_train", tmp_path / "reports", fault, "--config", file)
    result = torchrun(host_copy, *watched)
    where, rank = fault.split("@")
    assert not result.timed_out, result
    assert result.returncode != 0, result
    assert not result.leftovers, result
    assert FINISHED not in result.stdout
    root_cause = result.stderr.partition("Root Cause")[2]
    assert f"rank      : {rank} " in root_cause, result
    assert f"PlantedFault: planted at {where} on rank {rank}" in root_cause, result
    assert "Traceback (most recent call last)" in root_cause, result
    assert not list(tmp_path.glob("reports/*")), "a rank believes that it finished"
    assert not result.abort_texts(), result
    require_soon(result)


@pytest.mark.planted_fault
def test_a_fault_while_the_run_directory_is_made_ends_every_rank(
    host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    file = config_file("diffusion_policy")
    watched = ("tests.e2e.entries.watched_train", tmp_path, "run_directory@0", "--config", file)
    result = torchrun(host_copy, *watched)
    assert result.returncode != 0 and not result.timed_out and not result.leftovers, result
    assert "PlantedFault: planted at run_directory on rank 0" in result.stderr, result


@pytest.mark.planted_fault
def test_a_rank_that_is_killed_ends_the_job(
    host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    """One that exits by itself: tests/e2e/test_root_cause.py."""
    file = config_file("diffusion_policy")
    watched = ("tests.e2e.entries.watched_train", tmp_path, "kill@1", "--config", file)
    result = torchrun(host_copy, *watched)
    assert result.returncode != 0 and not result.timed_out and not result.leftovers, result
    root_cause = result.stderr.partition("Root Cause")[2]
    assert "rank      : 1 " in root_cause and "exitcode  : -9 " in root_cause, result
    assert not result.abort_texts(), result


@pytest.mark.planted_fault
def test_a_rank_that_hangs_is_named(
    host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    file = config_file("diffusion_policy", {"ddp": {"timeout": 6}})
    watched = ("tests.e2e.entries.watched_train", tmp_path, "hang@1", "--config", file)
    result = torchrun(host_copy, *watched)
    assert result.returncode != 0 and not result.timed_out and not result.leftovers, result
    assert "rank 0 waited at: epoch 1 train, step 2, for at least 6 s" in result.stderr, result
    # Both are inside their second step; rank 1 has not come to its forward.
    assert "Not there yet: rank 1 is at: epoch 1 train, step 2" in result.stderr, result
    assert not result.abort_texts(), result
