"""Collectives of objects on real ranks."""

from __future__ import annotations

import gc
import os
import signal
import socket

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.distributed import group
from robomimic_ddp.errors import LaunchError
from tests.hosts import torchrun


def gathered(sizes):
    return group.gather_objects(bytes([group.rank()]) * sizes[group.rank()])


@pytest.mark.parametrize("sizes", [(0, 0), (1, 900), (985, 1016), (0, 5000), (3000, 40_000)])
def test_values_of_any_size_arrive_whole_and_in_rank_order(ranks, sizes):
    expected = [bytes([rank]) * size for rank, size in enumerate(sizes)]
    assert ranks.run(gathered, sizes) == [expected] * 2


@pytest.mark.e2e
def test_a_process_may_form_a_second_group_in_the_launchers_store():
    """A host that trains with several seeds: the store has the addresses of the first group."""
    result = torchrun(None, "tests.e2e.entries.two_groups")
    assert result.returncode == 0 and not result.leftovers, result
    assert result.stdout.split("\n")[-3:-1] == [
        "the first group has two ranks",
        "the second group has two ranks",
    ]


def join_a_deaf_port():
    try:
        with group.process_group("gloo", 1.0):
            pass
    except LaunchError as error:
        return str(error)


@pytest.mark.skipif(
    not hasattr(torch.nn.Module, "compile"), reason="torch 2.0 waits with the interpreter's lock"
)
def test_a_port_that_never_answers_is_given_up(ranks):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(deaf.getsockname()[1])}
        meets = {**place, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        options = {"world_size": 1, "process_group": False, "environment": meets, "timeout": 30.0}
        (error,) = ranks.run(join_a_deaf_port, **options)
    assert "did not answer for 1 s (ddp.timeout)" in error and "MASTER_PORT" in error


def forked_with_garbage(folder):
    """Exit status of a forked process that collects what refers to this one's groups."""
    gc.disable()
    try:
        place = {"init_method": f"file://{folder}/meeting", "rank": 0, "world_size": 1}
        dist.init_process_group("gloo", **place)
        for _ in range(12):
            others = dist.new_group()
            net = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=others)
            net.itself = [net]  # a cycle, as those of tracebacks: only the collector finds it
        dist.destroy_process_group()
        del net, others
        child = os.fork()
        if not child:
            signal.alarm(40)
            gc.collect()
            os._exit(0)
        return os.waitpid(child, 0)[1]
    finally:
        gc.enable()


def test_a_data_worker_leaves_the_groups_of_its_parent_alone(ranks, tmp_path):
    """Garbage may refer to a group: its destructor joins threads, which a forked process lacks."""
    options = {"world_size": 1, "process_group": False}
    assert ranks.run(forked_with_garbage, str(tmp_path), **options) == [0]
