"""The host's own rollouts in an environment of ours, split over real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.configs import ConfigMaker
from tests.hosts import Host, require_clean, torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

EPISODES, EPOCHS = 5, 2
CHANGES = {
    "experiment": {
        "rollout": {"enabled": True, "n": EPISODES, "horizon": 6, "rate": 1, "warmstart": 0},
        "save": {"on_best_rollout_success_rate": True},
    }
}


def test_episodes_are_split_and_the_statistics_are_those_of_all(
    host_copy: Host, config_file: ConfigMaker, tmp_path: Path
) -> None:
    file = config_file("diffusion_policy", CHANGES)
    folder = tmp_path / "reports"
    result = torchrun(host_copy, "tests.e2e.walk_env", folder, "--config", file)
    require_clean(result)
    assert result.stdout.count("2 ranks: rank 0: 0, 2, 4; rank 1: 1, 3") == EPOCHS
    zero, one = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2))
    assert len(zero["beginnings"]) == 3 * EPOCHS and len(one["beginnings"]) == 2 * EPOCHS
    assert len(set(zero["beginnings"] + one["beginnings"])) == EPISODES * EPOCHS
    assert zero["statistics"] == one["statistics"]
    assert len(zero["statistics"]) == EPOCHS
