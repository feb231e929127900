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


def calls_of_the_group():
    """How many calls of this function the present group has seen: its store counts them."""
    count = dist.distributed_c10d._get_default_store().add("calls of ranks", 1)
    return group.gather_objects((count, dist.distributed_c10d._world.group_count))


def fresh(results):
    """Whether the group was formed for this call."""
    counts = sorted(count for count, _ in results[0])
    assert len({formed for _, formed in results[0]}) == 1
    return counts == list(range(1, len(counts) + 1))


def leave_the_group():
    group.leave()


def leave_a_subgroup():
    dist.new_group(backend="gloo")


def leave_another_group():
    group.leave()
    file = f"file://{os.environ['RANKS_RENDEZVOUS']}"
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=world_size)


def count_one_group_more(rank):
    dist.distributed_c10d._world.group_count += group.rank() == rank


def one_collective_more(rank):
    if group.rank() == rank:
        dist.all_reduce(torch.zeros((), dtype=torch.int64), async_op=True)


def several_collectives(number):
    total = 0.0
    for _ in range(number):
        drawn = torch.rand(()) + group.rank()
        total += float(group.sum_over_ranks(drawn))
    with group.without_time_limit() as waiting:
        assert len(group.gather_objects(total, within=waiting)) == group.world_size()
    return total


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


def test_failures_in_a_row_do_not_spoil_each_other(ranks):
    for number in range(10):
        with pytest.raises(RankError, match="fails on purpose"):
            ranks.run(fail_on, number % 2)
        assert ranks.run(rank_and_sum, 1.0)[1] == (1, 2, 2.0)


def test_a_task_leaves_nothing_behind(ranks, tmp_path):
    first = ranks.run(leak_everything, str(tmp_path))
    second = ranks.run(look_around)
    assert [seen[:2] for seen in second] == [(None, os.getcwd())] * 2
    assert [seen[2] for seen in second] == first


def test_the_group_is_kept_for_each_world_size(ranks):
    """In turns, with another number of collectives each time, and groups for a while."""
    for world_size in (1, 2, 3, 4):
        ranks.run(calls_of_the_group, world_size=world_size)
    seen = {}
    for turn in range(8):
        for world_size in (1, 2, 3, 4):
            totals = ranks.run(several_collectives, turn % 4, world_size=world_size)
            expected = seen.setdefault((turn % 4, world_size), totals)
            assert totals == expected and len(set(totals)) == 1
            assert not fresh(ranks.run(calls_of_the_group, world_size=world_size))


@pytest.mark.parametrize(
    ("task", "arguments", "options"),
    [
        (leave_the_group, (), {}),
        (leave_a_subgroup, (), {}),
        (leave_another_group, (), {}),
        (count_one_group_more, (1,), {}),
        (look_around, (), {"process_group": False}),
        (own_group, (), {"process_group": False}),
    ],
)
def test_a_group_that_is_not_as_it_was_is_replaced(task, arguments, options, ranks):
    ranks.run(calls_of_the_group)
    assert not fresh(ranks.run(calls_of_the_group))
    ranks.run(task, *arguments, **options)
    assert fresh(ranks.run(calls_of_the_group))
    assert not fresh(ranks.run(calls_of_the_group))


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_made_different_collectives_fail(rank, ranks):
    """A collective that one rank has begun and not waited for would meet the next task's."""
    with pytest.raises(RankError, match="the ranks have not made the same collectives"):
        ranks.run(one_collective_more, rank)
    assert fresh(ranks.run(calls_of_the_group))


@pytest.mark.parametrize("task", [fail_on, die_on])
def test_a_failure_replaces_the_group_of_its_world_size_only(task, ranks):
    for world_size in (2, 3):
        ranks.run(calls_of_the_group, world_size=world_size)
    with pytest.raises(RankError):
        ranks.run(task, 1)
    assert fresh(ranks.run(calls_of_the_group))
    assert not fresh(ranks.run(calls_of_the_group, world_size=3))
