"""Algorithms without wrapped nets, through real torchrun: DDP for each optimizer."""

from __future__ import annotations

import json

import pytest

from tests.configs import VARIANTS
from tests.hosts import FINISHED, python, require_clean, torchrun
from tests.runs import epoch_logs, run_directory
from tests.tiers import slow_but

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


OTHERS = [name for name, (algo, _) in VARIANTS.items() if algo != "diffusion_policy"]


@pytest.mark.parametrize("variant", slow_but({"hbc", "cql"}, OTHERS))
def test_two_ranks_train_one_model(variant, host_copy, config_file, tmp_path):
    """CQL steps its temperature after a plain backward()."""
    tuned = {"algo": {"critic": {"target_q_gap": 5.0}}} if variant == "cql" else {}
    arguments = ["robomimic.scripts.train", "--config", config_file(variant, tuned)]
    result = torchrun(host_copy, *arguments, timeout=180)
    require_clean(result)
    assert FINISHED in result.stdout and "gradients: " in result.stdout
    assert "find_unused_parameters" not in result.stdout + result.stderr
    directory = run_directory(tmp_path / "runs")
    outcome = json.loads((directory / "ddp.json").read_text())["outcome"]
    assert outcome["gradients_equal"] is True and outcome["noise_differs"] is True
    assert outcome["steps"] == 6
    assert {("Train", 2), ("Validation", 2)} <= set(epoch_logs(directory))


def test_a_hierarchical_algorithm_trains_where_data_parallel_would_be_chosen(
    host_copy, config_file, tmp_path
):
    """On a workstation with two GPUs plain python selects DataParallel, for every algorithm."""
    added = {"ROBOMIMIC_DDP_MODE": "dp"}
    arguments = ["robomimic.scripts.train", "--config", config_file("hbc")]
    result = python(host_copy, *arguments, added=added, timeout=180)
    require_clean(result)
    assert FINISHED in result.stdout and "mode: one device" in result.stdout
    assert ("Train", 2) in epoch_logs(run_directory(tmp_path / "runs"))
