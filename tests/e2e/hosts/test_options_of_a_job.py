"""A "ddp" section, environment and `ddp.*` values reach the host's own entry, and no file of the
host. Of the dot-list entry: test_composing_entry.py, tests/e2e/rlds/test_two_ranks_rlds.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import python, require_clean, torchrun
from tests.runs import checkpoints, load, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
ONE_EPOCH = {
    "experiment": {"epoch_every_n_steps": 1},
    "train": {"num_epochs": 1},
    "algo": {"optim_params": {"policy": {"learning_rate": {"warmup_steps": 0}}}},
    "ddp": {"lr_scaling": "sqrt", "batch": "per_rank", "kwargs": {"static_graph": False}},
}


def record_of(output: Path) -> dict[str, Any]:
    """The run's ddp.json, after a look that the host's own files know nothing of our section."""
    directory = run_directory(output)
    assert "ddp" not in json.loads((directory / "config.json").read_text())
    for path in checkpoints(directory).values():
        assert "ddp" not in json.loads(load(path)["config"])
    return json.loads((directory / "ddp.json").read_text())


def test_the_hosts_own_entry_reads_all_three_places(host_copy, config_file, tmp_path):
    config = config_file("diffusion_policy", ONE_EPOCH)
    added = {"ROBOMIMIC_DDP_LR_SCALING": "linear", "ROBOMIMIC_DDP_DEBUG": "true"}
    added["ROBOMIMIC_DDP_KWARGS"] = "{bucket_cap_mb: 1, find_unused_parameters: true}"
    arguments = ["--config", config, "ddp.debug=false", "ddp.kwargs.bucket_cap_mb=2"]
    result = torchrun(host_copy, "robomimic.scripts.train", *arguments, added=added, timeout=180)
    require_clean(result)
    assert "learning rate: 0.0001 -> 0.0002 (x 2)" in result.stdout
    record = record_of(tmp_path / "runs")
    assert record["options"]["lr_scaling"] == "linear"
    assert record["sources"]["lr_scaling"] == "environment"
    assert record["sources"]["batch"] == "file"
    assert record["sources"]["debug"] == "command line" and record["options"]["debug"] is False
    kwargs = {"bucket_cap_mb": 2, "find_unused_parameters": True, "static_graph": False}
    assert record["options"]["kwargs"] == kwargs


@pytest.mark.bad_input
def test_a_key_beside_config_is_one_clear_error(host_copy, config_file, tmp_path):
    """Which argparse would call an unrecognized argument."""
    words = ["--config", config_file("diffusion_policy", ONE_EPOCH), "train.num_epochs=5"]
    result = python(host_copy, "robomimic.scripts.train", *words, timeout=180)
    assert result.returncode == 1, result
    assert "error: found train.num_epochs=5, but this script reads" in result.stderr
    assert "usage:" not in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()
