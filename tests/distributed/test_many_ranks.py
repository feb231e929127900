"""Everything that depends on the number of ranks, at up to 1024 of them in one process.

Cost is counted, never timed: messages, items touched, draws. Where a process group is needed it is
torch's fake one, whose gathers give each rank's value as this rank's own. That shares of data and
merged statistics are exact at any number of ranks: tests/data and tests/rlds.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.data.rlds.order import pass_schedule
from robomimic_ddp.data.rlds.order.pass_schedule import PassSchedule, Segment
from robomimic_ddp.data.rlds.order.shuffle_plan import Shuffle
from robomimic_ddp.data.sampling import ShardedSampler, order_of
from robomimic_ddp.distributed import group, rng, signals
from robomimic_ddp.errors import VerifyError
from robomimic_ddp.monitoring import metrics
from robomimic_ddp.monitoring.step_logs import BatchLogs
from robomimic_ddp.verify import comparison
from robomimic_ddp.verify.comparison import Different, Evidence

MANY = 1024
FAKE = "torch.testing._internal.distributed.fake_pg"
"""Importing it registers the backend "fake"."""


@contextmanager
def fake_group(world, rank=0):
    """A process group of `world` ranks, of which only this one is there."""
    pytest.importorskip(FAKE, reason="this torch has no fake process group")
    dist.init_process_group("fake", rank=rank, world_size=world, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def messages(monkeypatch):
    """Counts collectives, and the bytes that this rank gives to them."""
    counted = Counter()

    def counting(name, given):
        original = getattr(dist, name)

        def call(*args, **kwargs):
            tensor = args[given] if len(args) > given else kwargs["tensor"]
            counted["messages"] += 1
            counted["bytes"] += tensor.numel() * tensor.element_size()
            return original(*args, **kwargs)

        monkeypatch.setattr(dist, name, call)

    for name, given in (("all_gather", 1), ("all_reduce", 0), ("broadcast", 0)):
        counting(name, given)
    return counted


def test_a_sampler_draws_once_a_pass_and_shares_exactly():
    size, draws = 20_011, Counter()
    order = order_of(range(size), None, True, seed=3)
    drawn = {number: order(number) for number in range(2)}

    def counted(number):
        draws[number] += 1
        return drawn[number]

    shares, digests = [], set()
    for rank in range(MANY):
        sampler = ShardedSampler(counted, size, rank=rank, world_size=MANY, drop_last=True)
        list(sampler)
        shares.append(list(sampler))  # the second pass
        digests.add(sampler.order_digest())
    assert draws == {0: MANY, 1: MANY} and len(digests) == 1
    assert {len(share) for share in shares} == {size // MANY}
    taken = np.concatenate(shares)
    assert len(set(taken.tolist())) == len(taken) == size // MANY * MANY
    batch = np.stack([share[:4] for share in shares], 1).reshape(-1)
    assert batch.tolist() == drawn[1][: 4 * MANY].tolist(), "a global batch is a piece of the order"


WINDOWS = 40


def keys_drawn(world, monkeypatch):
    """Random keys that a rank draws for the windows that 256 batches of 8 take out of its
    shuffle, and row orders of the pass.
    """
    counted, original, pass_order = Counter(), Shuffle._keys, pass_schedule.pass_order

    def keys(shuffle, start, stop):
        counted["keys"] += max(stop - start, 0)
        return original(shuffle, start, stop)

    def order(*given):
        counted["orders"] += 1
        return pass_order(*given)

    monkeypatch.setattr(Shuffle, "_keys", keys)
    monkeypatch.setattr(pass_schedule, "pass_order", order)
    windows = np.full(1024 * 64, WINDOWS)
    schedule = PassSchedule(np.arange(len(windows)), windows, 5, Segment(world, 8, 100))
    share = schedule.share(0, world - 1)
    share.shuffle.leaving(0, 2048)
    monkeypatch.undo()
    return counted


def test_what_a_rank_does_for_its_batches_does_not_depend_on_the_ranks(monkeypatch):
    few, many = keys_drawn(2, monkeypatch), keys_drawn(MANY, monkeypatch)
    assert few == many and few["keys"] <= 2048 + 2 * 100 and few["orders"] == 1


def evidence_of(items, digest="a"):
    return Evidence("here", equal={f"parameter {i}": (i, digest) for i in range(items)})


@pytest.mark.parametrize("world", [2, 64, MANY])
def test_a_comparison_is_one_message_of_1_kb_whatever_the_ranks_and_items(world, messages):
    with fake_group(world, rank=world - 1):
        evidence_of(500).require()
        assert messages == {"messages": 1, "bytes": 1024}
        with pytest.raises(VerifyError, match="have the same; expected a different one"):
            Evidence("here", different=[Different("noise", "x", "")]).require()


class Watched:
    """A value that counts how often it is looked at."""

    looks = 0

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        Watched.looks += 1
        return hash(self.value)

    def __eq__(self, other):
        Watched.looks += 1
        return isinstance(other, Watched) and self.value == other.value


def test_the_search_for_odd_ranks_looks_at_each_a_few_times():
    for world in (128, MANY):
        Watched.looks = 0
        values = [Watched(rank % 64) for rank in range(world)]
        assert len(comparison.odd_ranks(values)) == world - world // 64
        assert world <= Watched.looks <= 6 * world


def test_a_steps_messages_do_not_depend_on_the_ranks(messages):
    """DDP's buckets and the question whether to stop: as many messages, of as many bytes."""
    counted = {}
    for world in (2, MANY):
        messages.clear()
        torch.manual_seed(0)
        with fake_group(world):
            net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 64))
            parallel = DistributedDataParallel(net, bucket_cap_mb=0.1)
            sent = []

            def hook(state, bucket, sent=sent):
                sent.append(bucket.buffer().numel())
                future = torch.futures.Future()
                future.set_result(bucket.buffer())
                return future

            parallel.register_comm_hook(None, hook)
            stopper = signals.Stopper()
            for _ in range(3):
                parallel(torch.ones(2, 64)).sum().backward()
                assert not stopper.agreed()
        counted[world] = (len(sent), sum(sent), dict(messages))
    numbers = sum(one.numel() for one in net.parameters())
    assert counted[2] == counted[MANY] and counted[2][1] == 3 * numbers
    assert counted[2][2]["messages"] == 3, "one small message a step beside the gradients"


def test_the_log_of_an_epoch_is_one_message(messages):
    with fake_group(MANY):
        logs = BatchLogs()
        logs.see({"Loss": 0.5}, {"actions": np.zeros((4, 1))})
        assert metrics.mean_over_ranks({"Loss": 0.5}, logs) == {"Loss": 0.5}
    assert messages == {"messages": 1, "bytes": 1024}


def test_what_ranks_save_grows_linearly(messages):
    """Each rank's random streams are gathered at an epoch's end: two messages at any world."""
    sizes = {}
    for world in (64, MANY):
        messages.clear()
        with fake_group(world, rank=3):
            state = rng.capture()
            parts = group.gather_objects(state)
        assert len(parts) == world and all(
            torch.equal(part["torch"], state["torch"]) for part in (parts[0], parts[-1])
        )
        sizes[world] = messages["bytes"]
        assert messages["messages"] == 2
    assert sizes[64] == sizes[MANY], "bytes that a rank sends, whatever the world size"
