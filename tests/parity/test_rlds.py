"""RLDS data: two ranks with batch B against one process that takes both ranks' batches joined.

16 steps of the host's image policy on the demo task's data: more than a pass, so that what is left
of one opens the next on both sides. The one process draws noise, timesteps and keypoint noise from
both ranks' streams. The tolerances and their reasons: tests/parity/comparison.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.configs import make_rlds_config, merged
from tests.parity.comparison import CHANGES, require_parity
from tests.parity.reference import train_for_all_ranks
from tests.parity.training import Job, job_of, train_on_rank

pytestmark = [pytest.mark.parity, pytest.mark.timeout(300)]
BATCH, STEPS = 8, 16


@pytest.fixture
def make_job(demo_dataset: Path, host_copy, tmp_path: Path) -> Callable[..., Job]:
    """`make_job(batch, **ddp)`: a job with that batch on a rank, and options of ours."""

    def make(batch: int = BATCH, **ddp: Any) -> Job:
        train = {"train": {"batch_size": batch}, "experiment": {"validate": False}}
        config = make_rlds_config(demo_dataset, tmp_path / "runs", merged(CHANGES, train))
        return job_of(host_copy, tmp_path, config, STEPS, **ddp)

    return make


def test_two_ranks_equal_one_process_with_both_batches(make_job, own_ranks):
    job = make_job()
    of_ranks = own_ranks.run(train_on_rank, job, timeout=200)
    (reference,) = own_ranks.run(train_for_all_ranks, job, 2, world_size=1, timeout=120)
    require_parity(of_ranks, reference)
    assert STEPS * BATCH * 2 > of_ranks[0]["samples"]


@pytest.mark.slow
@pytest.mark.parametrize("world", [3, 4])
def test_more_ranks(world, make_job, own_ranks):
    job = make_job(BATCH // 2)
    of_ranks = own_ranks.run(train_on_rank, job, world_size=world, timeout=250)
    (reference,) = own_ranks.run(train_for_all_ranks, job, world, world_size=1, timeout=120)
    require_parity(of_ranks, reference)


@pytest.mark.slow
def test_two_ranks_with_half_the_batch_twice(make_job, own_ranks):
    """Equal to the same process: samples, shares and passes are those of the whole batch."""
    halves = make_job(BATCH // 2, accumulate=2)
    of_ranks = own_ranks.run(train_on_rank, halves, timeout=200)
    (reference,) = own_ranks.run(train_for_all_ranks, halves, 2, 2, world_size=1, timeout=120)
    require_parity(of_ranks, reference)
