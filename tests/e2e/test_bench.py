"""`robomimic-ddp bench` trains a user's job on several ranks, and leaves its table only."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from tests.hosts import environment, python, require_clean

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
WORDS = ["--steps", "2", "--warmup", "1", "--rounds", "1"]


def test_a_job_on_one_and_two_ranks(host_copy, config_file, tmp_path):
    (tmp_path / "tmp").mkdir()
    added = {"TMPDIR": str(tmp_path / "tmp")}
    words = ["bench", "--config", config_file("diffusion_policy"), "--ranks", "1,2", *WORDS]
    result = python(host_copy, "robomimic_ddp", *words, added=added, cold=True, timeout=300)
    require_clean(result)
    rows = result.stdout.partition("for gradients\n")[2].splitlines()
    for number, row in zip("12", rows):
        found, rate, speed_up, _, milliseconds, _, data_wait, _ = row.split()
        assert found == number and (number != "1" or float(speed_up) == 1)
        samples = float(rate) * float(milliseconds) / 1000
        assert samples == pytest.approx(4 * int(number), rel=0.5), "medians of several epochs"
        assert 0 <= int(data_wait.rstrip("%")) <= 100
    assert "round 1 of 1, 2 ranks: " in result.stdout and "efficiency" in result.stdout
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
