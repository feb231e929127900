"""`prepare-data` and `inspect-data --config` as jobs: killed, started again, on two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")

from robomimic_ddp.distributed import rendezvous
from tests.rlds.conftest import ACTIONS, CAMERAS, STATES, write
from tests.rlds.damages import flip

pytestmark = pytest.mark.slow
SIZE = ("--size", "12x20", "--workers", "1")


def command(*words, ranks: int = 1) -> list[str]:
    launcher = ["-m", "torch.distributed.run", *rendezvous.on_this_machine()]
    launcher = [*launcher, f"--nproc_per_node={ranks}"] if ranks > 1 else []
    return [sys.executable, *launcher, "-m", "robomimic_ddp", *map(str, words)]


def run(*words, ranks: int = 1, code: int = 0) -> str:
    done = subprocess.run(command(*words, ranks=ranks), capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_job_is_started_again_and_loses_nothing(tmp_path):
    source, work = write(tmp_path / "data"), tmp_path / "out" / "made_up" / "1.0.0.incomplete"
    kept: dict[str, int] = {}
    for files in (1, 4):
        job = subprocess.Popen(command("prepare-data", source, tmp_path / "out", *SIZE))
        while len(list((work / "done").glob("*.json"))) < files and job.poll() is None:
            time.sleep(0.001)
        job.kill()
        job.wait()
        assert work.is_dir(), "it was complete before it was killed"
        times = {path.name: path.stat().st_mtime_ns for path in (work / "done").glob("*.json")}
        assert len(times) >= files and kept.items() <= times.items()
        kept = times
    assert "images encoded" in run("prepare-data", source, tmp_path / "out", *SIZE)
    run("prepare-data", source, tmp_path / "whole", *SIZE, ranks=2)
    folders = [tmp_path / name / "made_up" / "1.0.0" for name in ("out", "whole")]
    assert contents(folders[0]) == contents(folders[1]) and not work.exists()


def test_two_ranks_print_one_report_and_one_error(tmp_path):
    source = write(tmp_path / "data")
    modalities = {"obs": {"rgb": [CAMERAS[0]], "low_dim": [STATES[0]]}}
    config = {
        "train": {
            "data_format": "droid_rlds",
            "data_path": str(tmp_path / "data"),
            "dataset_names": ["made_up"],
            "action_keys": list(ACTIONS),
            "action_config": {key: {"normalization": "min_max"} for key in ACTIONS},
        },
        "observation": {"image_dim": [12, 20], "modalities": modalities},
        "experiment": {"validate": False},
        "algo_name": "bc",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    one = run("inspect-data", "--config", path, "--cache", tmp_path / "one")
    two = run("inspect-data", "--config", path, "--cache", tmp_path / "two", ranks=2)
    rows = [line for line in one.splitlines() if line.startswith(("abs_", "gripper"))]
    assert len(rows) == 10 and [two.count(line) for line in rows] == [1] * 10
    flip(6)(source)
    for words in (
        ["inspect-data", "--config", path],
        ["prepare-data", source, tmp_path / "out", *SIZE],
    ):
        said = run(*words, ranks=2, code=1)
        assert said.count("tfrecord-00006: record 0 is damaged") == 1, said
