"""On a CUDA device: NCCL with one rank, and devices by mode. Skipped, with reason, elsewhere."""

from __future__ import annotations

import json
import os
import sys

import pytest

from robomimic_ddp.commands.launch import devices
from scripts.bench import step
from tests.conftest import GPUS
from tests.hosts import FINISHED, python, require_clean, run, torchrun
from tests.runs import run_directory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("gpu"),
]
ON_CUDA = {"train": {"cuda": True}}
VISIBLE = {"CUDA_VISIBLE_DEVICES": os.environ[GPUS]}


@pytest.fixture(scope="module")
def gpu():
    """Skips where there is none. A subprocess asks torch, since this process sees no GPU."""
    look = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    none = not devices.installed_gpus()
    if none or run(None, sys.executable, "-c", look, added=VISIBLE).returncode:
        pytest.skip("this machine has no CUDA device")


def plan_of(output):
    return json.loads((run_directory(output) / "ddp.json").read_text())["plan"]


def test_ddp_over_nccl_with_one_rank(host_copy, config_file, tmp_path):
    config = config_file("diffusion_policy_images", ON_CUDA)
    added = {**VISIBLE, "ROBOMIMIC_DDP_MODE": "ddp"}
    arguments = ["robomimic.scripts.train", "--config", config]
    result = torchrun(host_copy, *arguments, ranks=1, added=added, timeout=300)
    require_clean(result)
    assert FINISHED in result.stdout
    plan = plan_of(tmp_path / "runs")
    assert (plan["mode"], plan["device"]) == ("ddp", "cuda:0")
    assert plan["backend"] == "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize("mode", ["single", "dp"])
def test_one_process(mode, host_copy, config_file, tmp_path):
    config = config_file("diffusion_policy_images", ON_CUDA)
    added = {**VISIBLE, "ROBOMIMIC_DDP_MODE": mode}
    arguments = ["robomimic.scripts.train", "--config", config]
    require_clean(python(host_copy, *arguments, added=added, timeout=300))
    plan = plan_of(tmp_path / "runs")
    assert (plan["mode"], plan["device"]) == (mode, "cuda:0")


def test_bench(tmp_path):
    """Every variant takes steps, NCCL with one rank and a compiled net among them."""
    file = tmp_path / "rows.json"
    words = ["--device", "cuda", "--rounds", "2", "--batch", "4", "--down-dims", "64,128"]
    words += ["--json", file]
    result = python(None, "scripts.bench.step", *words, added=VISIBLE, timeout=380)
    require_clean(result)
    rows = json.loads(file.read_text())
    number = len(step.ON_CUDA) + len(step.COMPILED)
    assert [row["cameras"] for row in rows] == [0] * number + [2] * number
    for row in rows:
        assert row["device"] == "cuda" and row["samples_per_second"] > 0
        assert row["device_peak_mb"] > 4e-6 * row["parameters"]
        assert 0 < row["gpu_busy"] <= 1 and row["graph_breaks"] == 0
    assert "peak GPU" in result.stdout
