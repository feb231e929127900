"""`robomimic-ddp evaluate` on given checkpoints: real processes, a host with a small simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robomimic_ddp.monitoring import evaluation, history
from tests.evaluate.conftest import EPISODES, Job
from tests.hosts import require_clean

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def in_process(run: Path) -> dict[int, dict[str, float]]:
    """Epoch -> the statistics of the rollouts during training."""
    lines = [line for line in history.read(run) if line["phase"] == "rollout"]
    return {line["epoch"]: line["log"] for line in lines}


def episodes(run: Path) -> list[tuple]:
    """(epoch, environment, episode) of each line, sorted."""
    lines = [line for line in evaluation.read(run) if line["kind"] == "episode"]
    return sorted((line["epoch"], line["env"], line["episode"]) for line in lines)


def logs(run: Path) -> dict[tuple, dict[str, float]]:
    lines = [line for line in evaluation.read(run) if line["kind"] == "episode"]
    return {(line["epoch"], line["episode"]): line["log"] for line in lines}


def test_any_number_of_workers_plays_the_episodes_of_training(job: Job) -> None:
    one = job.evaluate("--checkpoints", "all", "--workers", 1)
    require_clean(one)
    first = logs(job.run)
    expected = in_process(job.run)
    for result in evaluation.results(job.run):
        before = expected[result["epoch"]]
        for name in ("Success_Rate", "Return", "Horizon"):
            assert result["log"][name] == pytest.approx(before[name], rel=1e-5)
        assert result["episodes"] == EPISODES
    assert episodes(job.run) == [(e, "low_dim", n) for e in (1, 2) for n in range(EPISODES)]
    (job.run / evaluation.FILE_NAME).unlink()
    two = job.evaluate("--checkpoints", "all", "--workers", 2)
    require_clean(two)
    assert logs(job.run) == first
    assert len({tuple(sorted(log.items())) for log in first.values()}) == 2 * EPISODES
    assert f"{EPISODES} " in two.stdout and " to " in two.stdout
