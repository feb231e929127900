"""Ranks of unequal speed issue the same collectives, in the same order, from the same threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import optimizer_ddp
from robomimic_ddp.training.step import compile
from tests.faults.toy_run import ToyJob, train
from tests.ranks import actor_critic
from tests.versions import NEEDS_CALL_PLACE, NEEDS_FSDP

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor")
OPERATIONS += ("reduce_scatter_tensor", "broadcast_object_list", "_broadcast_coalesced")
LONGEST_SLEEP = 0.01


def name_of(process_group: dist.ProcessGroup) -> str:
    if hasattr(process_group, "group_name"):
        return process_group.group_name
    return dist.distributed_c10d._pg_names[process_group]  # torch 2.0


class Ledger:
    """Collectives that this rank has called: group, operation, sizes, types and thread."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.random = random.Random(group.rank())

    def sleep(self, *_: Any) -> None:
        """For a time that differs between ranks."""
        time.sleep(self.random.uniform(0, LONGEST_SLEEP))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """For the block collectives are recorded, those of DDP's buckets among them."""
        build = DistributedDataParallel.__init__

        def with_hook(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
            build(ddp, *args, **kwargs)
            ddp.register_comm_hook(None, default_hooks.allreduce_hook)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(DistributedDataParallel, "__init__", with_hook))
            for name in OPERATIONS:
                if hasattr(dist, name):
                    call = self._around(name, getattr(dist, name))
                    stack.enter_context(mock.patch.object(dist, name, call))
            yield

    def _around(self, name: str, call: Callable) -> Callable:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self.sleep()
            values = [*args, *kwargs.values()]
            within = [name_of(v) for v in values if isinstance(v, dist.ProcessGroup)]
            values = [v for one in values for v in (one if isinstance(one, list) else [one])]
            tensors = [v for v in values if isinstance(v, torch.Tensor)]
            about = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
            self.calls.append((within, name, about, threading.current_thread().name))
            return call(*args, **kwargs)

        return recorded


def toy(ledger: Ledger, options: dict, plant: Callable | None = None) -> None:
    """Train the toy with sleeps at each moment of a step and within the backward pass."""

    def slow_gradients(job: Any) -> None:
        for parameter in job.algo.nets.parameters():
            parameter.register_hook(ledger.sleep)

    plants = {"construction": slow_gradients, "step": ledger.sleep, "stepped": ledger.sleep}
    job = ToyJob({**plants, **({"backward": plant} if plant else {})})
    job.options = options
    train(job)


def for_each_optimizer(ledger: Ledger) -> None:
    algo = actor_critic.make_algo()
    with ExitStack() as undo:
        optimizer_ddp.build(algo, Options(), undo)
        for parameter in algo.nets.parameters():
            parameter.register_hook(ledger.sleep)
        for _ in range(3):
            actor_critic.step(algo, torch.randn(4, 4, dtype=torch.float64))


def of_another_type(job: Any) -> None:
    dist.all_reduce(torch.zeros(2, dtype=(torch.float32, torch.int32)[job.rank]))


def from_another_thread(job: Any) -> None:
    """On rank 1."""
    if job.rank == 0:
        dist.all_reduce(torch.zeros(2))
        return
    thread = threading.Thread(target=dist.all_reduce, args=(torch.zeros(2),), name="another")
    thread.start()
    thread.join()


RUNS: dict[str, Callable[[Ledger], None]] = {
    "ddp": lambda ledger: toy(ledger, {}),
    "fsdp": lambda ledger: toy(ledger, {"mode": "fsdp"}),
    "compiled": lambda ledger: toy(ledger, {"compile": "true"}),
    "for each optimizer": for_each_optimizer,
    "of another type": lambda ledger: toy(ledger, {}, of_another_type),
    "from another thread": lambda ledger: toy(ledger, {}, from_another_thread),
}
OF_STEPS = {
    "ddp": "all_reduce",
    "fsdp": "reduce_scatter_tensor",
    "compiled": "all_reduce",
    "for each optimizer": "all_reduce",
}
"""What averages gradients."""


def issued(run: str) -> list[tuple]:
    """Collective: the collectives that this rank has called."""
    ledger = Ledger()
    with ledger.watching(), mock.patch.object(compile, "BACKEND", "aot_eager"):
        RUNS[run](ledger)
    return ledger.calls


@pytest.mark.parametrize(
    "run",
    [
        "ddp",
        pytest.param("fsdp", marks=NEEDS_FSDP),
        pytest.param("compiled", marks=[NEEDS_CALL_PLACE, pytest.mark.slow]),
        "for each optimizer",
    ],
)
def test_ranks_of_unequal_speed_issue_the_same_collectives(ranks, run):
    zero, one = ranks.run(issued, run, timeout=200.0)
    assert zero == one
    assert {thread for *_, thread in zero} == {"MainThread"}
    averages = [about for _, name, about, _ in zero if name == OF_STEPS[run]]
    assert len(averages) >= 3 and all("float" in kind for about in averages for _, kind in about)


@pytest.mark.planted_fault
@pytest.mark.parametrize("run", ["of another type", "from another thread"])
def test_a_collective_that_differs_is_found(ranks, run):
    zero, one = ranks.run(issued, run, timeout=200.0)
    assert len(zero) == len(one) and zero != one
