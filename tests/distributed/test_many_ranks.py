"""Everything that depends on the number of ranks, at up to 1024 of them in one process.

Cost is counted, never timed: messages, items touched, draws. Where a process group is needed it is
torch's fake one, whose gathers give each rank's value as this rank's own. That shares of data and
merged statistics are exact at any number of ranks: tests/data and tests/rlds.
"""

from __future__ import annotations

import gc
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
from robomimic_ddp.distributed.watchdog_thread import Watchdog
from robomimic_ddp.errors import VerifyError
from robomimic_ddp.verify.comparison import Different, Evidence
from tests.faults import toy_run

MANY = 1024
NODES = (2, 256)
"""Ranks of a small job, and of one on several nodes."""
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
    """Counts collectives by name and by the bytes that this rank gives to them."""
    counted = Counter()

    def counting(name, given):
        original = getattr(dist, name)

        def call(*args, **kwargs):
            tensor = args[given] if len(args) > given else kwargs["tensor"]
            counted[name, tensor.numel() * tensor.element_size()] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(dist, name, call)

    for name, given in (("all_gather", 1), ("all_reduce", 0), ("broadcast", 0)):
        counting(name, given)
    return counted


def test_a_sampler_draws_once_a_pass():
    size, draws = 20_011, Counter()
    order = order_of(range(size), None, True, seed=3)

    def counted(number):
        draws[number] += 1
        return order(number)

    shares = []
    for rank in (0, 1, MANY - 1):
        sampler = ShardedSampler(counted, size, rank=rank, world_size=MANY, drop_last=True)
        list(sampler)
        shares.append(list(sampler))  # the second pass
    assert draws == {0: 3, 1: 3}
    whole = order(1)[: size // MANY * MANY].reshape(-1, MANY)
    assert shares == whole[:, [0, 1, MANY - 1]].T.tolist()


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


def test_a_comparison_is_one_message_of_1_kb_whatever_the_ranks_and_items(messages):
    with fake_group(MANY, rank=MANY - 1):
        evidence_of(500).require()
        assert messages == {("all_gather", 1024): 1}
        with pytest.raises(VerifyError, match="have the same; expected a different one"):
            Evidence("here", different=[Different("noise", "x", "")]).require()


def keep_gradients(job):
    """torch's fake group answers no all-reduce of DDP's buckets."""

    def hook(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    for net in gc.get_objects():
        # isinstance would ask a dead weakref.proxy for its class.
        if issubclass(type(net), DistributedDataParallel) and not net._comm_hooks:
            net.register_comm_hook(None, hook)


def test_all_messages_of_an_epoch_do_not_depend_on_the_ranks(messages, monkeypatch):
    """From the first agreement on host and options to the saved state of each rank: all that are
    gathered have 1 kB (an epoch's log is one), but for the ranks' random states. (All ranks have
    equal ones here, which `ddp.verify` would refuse.)
    """
    counted = {}
    for world in NODES:
        messages.clear()
        monkeypatch.setattr(toy_run, "SAMPLES", world * toy_run.BATCH * toy_run.STEPS)
        for name, number in (("RANK", 0), ("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", 2)):
            monkeypatch.setenv(name, str(number))
        for name, text in (("LOCAL_RANK", "0"), ("MASTER_ADDR", "none"), ("MASTER_PORT", "1")):
            monkeypatch.setenv(name, text)
        with fake_group(world):
            job = toy_run.ToyJob({"epoch begins": keep_gradients})
            job.options = {"verify": "false"}
            toy_run.train(job)
        counted[world] = dict(messages)
    assert counted[256] == counted[2]
    gathered = {size: times for (name, size), times in counted[256].items() if "gather" in name}
    (of_states,) = set(gathered) - {1024}
    assert gathered[of_states] == 1 and of_states < 20_000 and gathered[1024] <= 12
    assert counted[256]["all_reduce", 16] == toy_run.STEPS, "the question whether to stop"


def places_of(world):
    """What the first rank says of others that are all behind it."""
    store = dist.HashStore()
    watchdog = Watchdog(store, 0, world, 60.0)
    watchdog.reached("epoch 3 train log")
    return watchdog.late()


def random_states_of(world):
    with fake_group(world), pytest.raises(VerifyError) as refused:
        Evidence("here", different=[Different("noise", "x", "")]).require()
    return str(refused.value)


def test_what_is_said_of_many_ranks_fits_a_screen():
    """A job of 256 ranks that failed printed the number of each, on each rank."""
    for text in (places_of(256), random_states_of(256)):
        assert "and 23" in text or "and 24" in text, text
        assert 100 < len(text) < 1600, text
