"""RLDS data: two ranks with batch B against one process that takes both ranks' batches joined.

25 steps of the host's image policy on the demo task's data: more than a pass, so that what is left
of one opens the next on both sides. The one process draws noise, timesteps and keypoint noise from
both ranks' streams. The tolerances and their reasons: tests/parity/comparison.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.configs import make_rlds_config, merged, write_config
from tests.parity.comparison import CHANGES, STEPS, faults, require_parity
from tests.parity.reference import train_for_all_ranks
from tests.parity.training import Job, train_on_rank

pytestmark = [pytest.mark.parity, pytest.mark.timeout(300)]
BATCH = 8


@pytest.fixture
def job(demo_dataset: Path, host_copy, tmp_path: Path) -> Job:
    changes = merged(CHANGES, {"train": {"batch_size": BATCH}, "experiment": {"validate": False}})
    config = make_rlds_config(demo_dataset, tmp_path / "runs", changes)
    settings = write_config(tmp_path / "config.json", config)
    return Job(str(host_copy.folder), str(settings), STEPS)


def test_two_ranks_equal_one_process_with_both_batches(job, own_ranks):
    of_ranks = own_ranks.run(train_on_rank, job, timeout=200)
    (reference,) = own_ranks.run(train_for_all_ranks, job, 2, world_size=1, timeout=120)
    require_parity(of_ranks, reference)
    assert STEPS * BATCH * 2 > of_ranks[0]["samples"]
    (alone,) = own_ranks.run(train_for_all_ranks, job, 1, world_size=1, timeout=120)
    assert faults(of_ranks[0], alone) == ["nets", "ema", "exp_avg", "exp_avg_sq"]


@pytest.mark.slow
@pytest.mark.parametrize("world", [3, 4])
def test_more_ranks(world, job, own_ranks):
    config = json.loads(Path(job.settings).read_text())
    config["train"]["batch_size"] = BATCH // 2
    job = job._replace(settings=str(write_config(Path(job.settings + ".more.json"), config)))
    of_ranks = own_ranks.run(train_on_rank, job, world_size=world, timeout=250)
    (reference,) = own_ranks.run(train_for_all_ranks, job, world, world_size=1, timeout=120)
    require_parity(of_ranks, reference)


def test_two_ranks_with_half_the_batch_twice(job, own_ranks):
    """Equal to the same process: samples, shares and passes are those of the whole batch."""
    config = json.loads(Path(job.settings).read_text())
    config["train"]["batch_size"] = BATCH // 2
    config["ddp"] = {"accumulate": 2}
    halves = job._replace(settings=str(write_config(Path(job.settings + ".halves.json"), config)))
    of_ranks = own_ranks.run(train_on_rank, halves, timeout=200)
    (reference,) = own_ranks.run(train_for_all_ranks, halves, 2, 2, world_size=1, timeout=120)
    require_parity(of_ranks, reference)
