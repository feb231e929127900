"""The pool itself: results in rank order; a failing, dead or hung rank fails with its reason."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

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


def fail_to_join():
    """As a rank whose peer left while it was joining: torch has counted a group that never was."""
    if os.environ["RANK"] == "1":
        file = f"file://{os.environ['RANKS_RENDEZVOUS']}"
        one_second = timedelta(seconds=1)
        dist.init_process_group("gloo", init_method=file, rank=1, world_size=2, timeout=one_second)


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


def own_group():
    assert not group.is_initialized()
    rendezvous = {
        "init_method": f"file://{os.environ['RANKS_RENDEZVOUS']}",
        "rank": int(os.environ["RANK"]),
        "world_size": int(os.environ["WORLD_SIZE"]),
    }
    with group.process_group("gloo", 60.0, **rendezvous):
        return group.gather_objects(int(os.environ["LOCAL_RANK"]))


def group_of_the_call():
    """How many calls of this function the present group has seen: its store counts them."""
    count = dist.distributed_c10d._get_default_store().add("calls of ranks", 1)
    return group.gather_objects(count)


def add_a_subgroup():
    dist.new_group(backend="gloo")


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_results_come_in_rank_order(ranks, world_size):
    expected = [(rank, world_size, 2.0 * world_size) for rank in range(world_size)]
    assert ranks.run(rank_and_sum, 2.0, world_size=world_size) == expected


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


def test_a_rank_that_could_not_join_does_not_spoil_the_next_task(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(fail_to_join, process_group=False)
    assert list(caught.value.by_rank) == [1]
    assert ranks.run(rank_and_sum, 1.0)[1] == (1, 2, 2.0)


def test_a_task_leaves_nothing_behind(ranks, tmp_path):
    first = ranks.run(leak_everything, str(tmp_path))
    second = ranks.run(look_around)
    assert [seen[:2] for seen in second] == [(None, os.getcwd())] * 2
    assert [seen[2] for seen in second] == first


@pytest.mark.parametrize(
    "task, options",
    [
        (group_of_the_call, {}),
        (add_a_subgroup, {}),
        (group.leave, {}),
        (look_around, {"process_group": False}),
        (own_group, {"process_group": False}),
    ],
)
def test_every_task_has_a_new_group(task, options, ranks):
    ranks.run(task, **options)
    assert [sorted(counts) for counts in ranks.run(group_of_the_call)] == [[1, 2]] * 2
