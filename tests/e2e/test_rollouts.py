"""The host's own rollouts in an environment of ours, split over real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robomimic_ddp.monitoring.records import history
from tests.configs import ConfigMaker
from tests.hosts import Host, require_clean, require_soon, torchrun
from tests.runs import run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

EPISODES, EPOCHS = 5, 2
CHANGES = {
    "experiment": {
        "rollout": {"enabled": True, "n": EPISODES, "horizon": 6, "rate": 1, "warmstart": 0},
        "save": {"on_best_rollout_success_rate": True},
    }
}


@pytest.mark.parametrize("mode", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_episodes_are_split_and_the_statistics_are_those_of_all(
    mode: str, host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    file = config_file("diffusion_policy", {**CHANGES, "ddp": {"mode": mode}})
    folder = tmp_path / "reports"
    result = torchrun(host_copy, "tests.e2e.entries.walk_env", folder, "--config", file)
    require_clean(result)
    line = f"rollouts: {EPISODES} episode(s) of each environment, over 2 ranks"
    assert result.stdout.count(line) == EPOCHS
    zero, one = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2))
    assert len(zero["beginnings"]) == 3 * EPOCHS and len(one["beginnings"]) == 2 * EPOCHS
    assert len(set(zero["beginnings"] + one["beginnings"])) == EPISODES * EPOCHS
    assert zero["statistics"] == one["statistics"]
    assert len(zero["statistics"]) == EPOCHS
    lines = history.read(
        run_directory(Path(json.loads(Path(file).read_text())["train"]["output_dir"]))
    )
    rolled = [line for line in lines if line["phase"] == "rollout"]
    assert [line["epoch"] for line in rolled] == [1, 2]
    assert all(0 <= line["log"]["Success_Rate"] <= 1 and line["env"] for line in rolled)


@pytest.mark.planted_fault
def test_a_fault_in_an_episode_ends_the_ranks_that_wait_for_it(
    host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    """They wait in a group without a time limit."""
    file = config_file("diffusion_policy", CHANGES)
    arguments = (tmp_path / "reports", "--fails", 1, "--config", file)
    result = torchrun(host_copy, "tests.e2e.entries.walk_env", *arguments)
    assert result.returncode != 0 and not result.leftovers, result
    root_cause = result.stderr.partition("Root Cause")[2]
    assert "rank      : 1 " in root_cause, result
    assert "PlantedFault: planted in a rollout on rank 1" in root_cause, result
    assert not result.abort_texts() and not list(tmp_path.glob("reports/*")), result
    require_soon(result)
