"""The pool itself: a failing, dead or hung rank fails the test with its reason, and no task changes
what the next one sees.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
import torch

from robomimic_ddp.distributed import group
from tests.ranks.pool import RankError


def rank_and_sum(start):
    return group.rank(), group.world_size(), float(group.sum_over_ranks(torch.tensor(start)))


def fail_on(rank):
    if group.rank() == rank:
        print("about to fail")
        raise ValueError(f"rank {rank} fails on purpose")
    group.barrier()


def die_on(rank):
    if group.rank() == rank:
        os._exit(7)
    group.barrier()


def hang_on(rank):
    if group.rank() == rank:
        time.sleep(1000)
    group.barrier()


def leak_everything(folder):
    os.environ["ROBOMIMIC_DDP_MODE"] = "dp"
    os.chdir(folder)
    sys.stdout = None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.path.clear()
    return torch.rand(()).item()


def look_around():
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    return os.environ.get("ROBOMIMIC_DDP_MODE"), os.getcwd(), torch.rand(()).item()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failing_rank_fails_the_call_first_and_with_its_traceback(ranks, rank):
    with pytest.raises(RankError, match=f"rank {rank} fails on purpose") as caught:
        ranks.run(fail_on, rank)
    assert next(iter(caught.value.by_rank)) == rank
    assert "about to fail" in caught.value.by_rank[rank]
    assert "in fail_on" in caught.value.by_rank[rank]
    assert ranks.run(rank_and_sum, 1.0)[1] == (1, 2, 2.0)


def test_a_dead_rank_is_named_and_replaced(ranks):
    with pytest.raises(RankError, match="exit code 7") as caught:
        ranks.run(die_on, 1)
    assert "exit code 7" in caught.value.by_rank[1]
    assert ranks.run(rank_and_sum, 1.0)[1] == (1, 2, 2.0)


def test_a_hung_rank_is_shown_where_it_hangs_and_replaced(ranks):
    ranks.run(leak_everything, os.getcwd())
    with pytest.raises(RankError, match="did not answer within 4.0 s") as caught:
        ranks.run(hang_on, 1, timeout=4.0)
    assert "in hang_on" in caught.value.by_rank[1]
    assert ranks.run(rank_and_sum, 1.0)[1] == (1, 2, 2.0)


def test_a_task_leaves_nothing_behind(ranks, tmp_path):
    first = ranks.run(leak_everything, str(tmp_path))
    second = ranks.run(look_around)
    assert [seen[:2] for seen in second] == [(None, os.getcwd())] * 2
    assert [seen[2] for seen in second] == first
