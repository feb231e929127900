"""`robomimic-ddp bench` trains a user's job on one and two ranks, and leaves its table only."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil
import pytest

from tests.configs import write_config
from tests.hosts import environment, python, require_clean

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
WORDS = ["--ranks", "1,2", "--steps", "2", "--warmup", "1", "--rounds", "1"]


def bench(host, tmp_path, config, *words):
    (tmp_path / "tmp").mkdir()
    added = {"TMPDIR": str(tmp_path / "tmp")}
    words = ["bench", "--config", config, *WORDS, *words]
    return python(host, "robomimic_ddp", *words, added=added, cold=True, timeout=300)


def test_a_job_on_one_and_two_ranks(host_copy, config_file, tmp_path):
    config, rows, picture = config_file("diffusion_policy"), tmp_path / "b.json", tmp_path / "b.png"
    result = bench(host_copy, tmp_path, config, "-o", picture, "--json", rows)
    require_clean(result)
    one, two = json.loads(rows.read_text())
    assert (one["ranks"], two["ranks"], one["speed_up"]) == (1, 2, 1)
    for row in (one, two):
        samples = row["samples_per_second"] * row["step_seconds"]
        assert samples == pytest.approx(4 * row["ranks"], rel=0.5), "medians of several epochs"
        assert 0 <= row["data_wait"] <= 1
    assert "round 1 of 1, 2 ranks: " in result.stdout and "efficiency" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not [*(tmp_path / "tmp").iterdir()] and not (tmp_path / "runs").exists()


def test_a_bench_that_is_killed_leaves_no_training(host_copy, config_file, tmp_path):
    (tmp_path / "tmp").mkdir()
    words = [
        "bench",
        "--config",
        config_file("diffusion_policy"),
        *WORDS,
        "--ranks",
        "2",
        "--steps",
        "1000000",
    ]
    job = subprocess.Popen(
        [sys.executable, "-m", "robomimic_ddp", *map(str, words)],
        env=environment(host_copy, {"TMPDIR": str(tmp_path / "tmp")}),
        stdout=subprocess.DEVNULL,
    )
    started: list[psutil.Process] = []
    while len(started) < 3:  # torchrun and its ranks
        assert job.poll() is None
        time.sleep(0.1)
        started = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.wait()
    _, running = psutil.wait_procs(started, timeout=60)
    for process in running:
        process.kill()
    assert not running


@pytest.mark.bad_input
def test_a_training_that_fails_shows_its_last_lines(host_copy, config_file, tmp_path):
    settings = json.loads(config_file("diffusion_policy").read_text())
    settings["algo"]["optim_params"] = {"policy": {"optimizer_type": "none_of_the_hosts"}}
    config = write_config(tmp_path / "bad.json", settings)
    result = bench(host_copy, tmp_path, config)
    assert result.returncode == 1 and not result.leftovers
    assert "Error" in result.stderr.partition("robomimic-ddp: the training on 1 rank ended")[0]
    assert "ended with exit code 1; its last lines are above" in result.stderr
    assert not [*(tmp_path / "tmp").iterdir()]
