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
from robomimic_ddp.distributed import group, rng, signals
from robomimic_ddp.distributed.watchdog_thread import Watchdog
from robomimic_ddp.errors import VerifyError
from robomimic_ddp.monitoring import metrics
from robomimic_ddp.monitoring.step_logs import BatchLogs
from robomimic_ddp.training import rollouts
from robomimic_ddp.verify import comparison
from robomimic_ddp.verify.comparison import Different, Evidence
from tests.faults import toy_run

MANY = 1024
NODES = (2, 64, 256)
"""Ranks of a small job, and of jobs on several nodes."""
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
        assert messages == {("all_gather", 1024): 1}
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
    assert counted[2][2] == {("all_reduce", 16): 3}, "one message a step beside the gradients"


def test_the_log_of_an_epoch_is_one_message(messages):
    with fake_group(MANY):
        logs = BatchLogs()
        logs.see({"Loss": 0.5}, {"actions": np.zeros((4, 1))})
        assert metrics.mean_over_ranks({"Loss": 0.5}, logs) == {"Loss": 0.5}
    assert messages == {("all_gather", 1024): 1}


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
        sizes[world] = dict(messages)
        assert messages.total() == 2
    assert sizes[64] == sizes[MANY], "what a rank sends, whatever the world size"


@pytest.mark.parametrize("world", NODES)
def test_a_stop_takes_two_small_messages_at_any_number_of_ranks(world, messages):
    """After a step the answer to the question before it; between epochs one message is enough."""
    with fake_group(world):
        stopper = signals.Stopper()
        assert not stopper.agreed()
        stopper.received = "SIGTERM"
        assert [stopper.agreed(), stopper.agreed()] == [False, True]
        assert messages == {("all_reduce", 16): 2}
        messages.clear()
        stopper = signals.Stopper()
        assert not stopper.agreed_at_last()
        stopper.received = "SIGTERM"
        assert stopper.agreed_at_last()
        assert messages == {("all_gather", 1024): 2}


def keep_gradients(job):
    """torch's fake group answers no all-reduce of DDP's buckets."""

    def hook(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    for net in gc.get_objects():
        if isinstance(net, DistributedDataParallel) and not net._comm_hooks:
            net.register_comm_hook(None, hook)


def test_all_messages_of_an_epoch_do_not_depend_on_the_ranks(messages, monkeypatch):
    """From the first agreement on host and options to the saved state of each rank: all that are
    gathered have 1 kB, but for the ranks' random states. (All ranks have equal ones here, which
    `ddp.verify` would refuse.)
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
    assert counted[64] == counted[256] == counted[2]
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


def shares_of(world, capsys):
    with fake_group(world):
        rollouts._announce(500)
    return capsys.readouterr().out


def test_what_is_said_of_many_ranks_fits_a_screen(capsys):
    """A job of 256 ranks that failed printed the number of each, on each rank."""
    for text in (places_of(256), random_states_of(256), shares_of(256, capsys)):
        assert "and 23" in text or "and 24" in text, text
        assert 100 < len(text) < 1600, text
