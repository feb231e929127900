"""An algorithm that is not made parallel stops on two ranks before it trains a step."""

from __future__ import annotations

import pytest

from tests.hosts import FINISHED, python, require_clean, torchrun
from tests.runs import epoch_logs, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400), pytest.mark.planted_fault]


@pytest.mark.parametrize("variant", ["bc_rnn", "hbc"])
def test_two_ranks_of_another_algorithm_are_refused(variant, host_copy, config_file, tmp_path):
    """Each rank would train a model of its own, and nobody would notice."""
    config = config_file(variant)
    result = torchrun(host_copy, "robomimic.scripts.train", "--config", config, timeout=180)
    assert result.returncode != 0 and not result.leftovers, result
    assert FINISHED not in result.stdout
    assert "outside the nets that the retrofit synchronises" in result.stderr, result
    assert "2 ranks would train 2 different models" in result.stderr
    assert epoch_logs(run_directory(tmp_path / "runs")) == {}


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
