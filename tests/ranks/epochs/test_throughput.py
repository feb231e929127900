"""The pace of an epoch over real ranks."""

from __future__ import annotations

import time

import torch
from torch import nn

from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.monitoring import throughput


def epoch(steps_of_rank: list[int], wait_of_rank: list[float], is_parallel: bool) -> dict:
    """On a rank: trains a net for a while; the merged log."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    if is_parallel:
        parallel.parallelise(net, "ddp")
    net(torch.randn(4, 64)).square().mean().backward()  # builds it
    reducers = [parallel.state_of(net)] if is_parallel else []
    timer = throughput.Pace()
    for _ in range(steps_of_rank[group.rank()]):
        time.sleep(wait_of_rank[group.rank()])
        timer.batch({})
        net(torch.randn(4, 64)).square().mean().backward()
        timer.done()
    return throughput.over_ranks(timer, reducers, samples_per_step=8)


def test_all_ranks_tell_the_same_and_the_slow_loader_is_seen(ranks):
    logs = ranks.run(epoch, [3, 3], [0.0, 0.3], True)
    assert logs[0] == logs[1]
    log = logs[0]
    assert set(log) == {
        "Time_Steps_Per_Second",
        "Time_Samples_Per_Second",
        "Time_Data_Wait_Share",
        "Time_Step_Slowest_Rank",
        "Time_Step_Fastest_Rank",
        "Time_Communication_Share",
    }
    assert log["Time_Samples_Per_Second"] == 8 * log["Time_Steps_Per_Second"] > 0
    assert 0 < log["Time_Data_Wait_Share"] < 1
    assert 0 < log["Time_Communication_Share"] <= 1
    # The waiting rank's time inside the all-reduce is not its own work.
    assert log["Time_Step_Slowest_Rank"] > 0.2
    assert log["Time_Step_Slowest_Rank"] > log["Time_Step_Fastest_Rank"] >= 0


def test_nothing_is_said_of_communication_where_nothing_is_sent(ranks):
    for log in ranks.run(epoch, [2, 2], [0.0, 0.0], False):
        assert "Time_Communication_Share" not in log and log["Time_Steps_Per_Second"] > 0


def test_an_epoch_without_steps_says_nothing(ranks):
    assert ranks.run(epoch, [0, 0], [0.0, 0.0], False) == [{}, {}]
