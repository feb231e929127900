"""Everything that depends on the number of ranks, at up to 1024 of them in one process.

Exactness is shown over all ranks. Cost is counted, never timed: messages, items touched, draws.
Where a process group is needed it is torch's fake one, whose gathers give each rank's value as
this rank's own; what ranks say differently is put together here, rank by rank.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import fields

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from robomimic_ddp.config.env import LaunchEnv
from robomimic_ddp.config.options import resolve
from robomimic_ddp.config.plan import make_plan
from robomimic_ddp.data.rlds.index.build import files_of_rank
from robomimic_ddp.data.rlds.index.statistics import (
    QUANTILE_STEPS,
    Index,
    Moments,
    merged,
    merged_statistics,
)
from robomimic_ddp.data.rlds.order import pass_schedule
from robomimic_ddp.data.rlds.order.pass_schedule import PassSchedule, Segment
from robomimic_ddp.data.rlds.order.shuffle_plan import Shuffle
from robomimic_ddp.data.sampling import ShardedSampler, order_of, train_loader
from robomimic_ddp.distributed import group, rng, signals
from robomimic_ddp.errors import VerifyError
from robomimic_ddp.monitoring import metrics
from robomimic_ddp.monitoring.step_logs import BatchLogs
from robomimic_ddp.verify import comparison
from robomimic_ddp.verify.comparison import Different, Evidence
from robomimic_ddp.verify.rng_state import Streams

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


def planned(rank, world=MANY):
    env = LaunchEnv(
        launched=True, rank=rank, world_size=world, local_rank=rank % 8, local_world_size=8
    )
    return make_plan(
        env,
        resolve({"lr_scaling": "sqrt"}),
        visible_gpus=8,
        use_cuda=True,
        batch_size=16,
        cores=64,
    )


def test_plans_of_all_ranks_agree():
    plans = [planned(rank) for rank in range(MANY)]
    own = ("rank", "local_rank", "device")
    common = {
        tuple(value for name, value in vars(plan).items() if name not in own) for plan in plans
    }
    assert len(common) == 1
    assert [plan.rank for plan in plans] == list(range(MANY))
    assert all(plan.device == f"cuda:{plan.rank % 8}" for plan in plans)
    first = plans[0]
    assert first.samples_per_step == 16 * MANY and first.lr_factor(1, False) == 32
    assert len(first.describe().splitlines()) == len(planned(0, 8).describe().splitlines())


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


@pytest.mark.parametrize("before, after", [(MANY, 1000), (7, MANY)])
def test_another_number_of_ranks_shares_the_rest_of_a_pass(before, after):
    size, batch = 20_000, 2

    def loaders(world, ranks):
        kwargs = {"dataset": range(size), "batch_size": batch, "shuffle": True}
        for rank in ranks:
            yield train_loader(
                DataLoader, kwargs, rank=rank, world_size=world, seed=3, batch_size_per_rank=batch
            )

    first = next(loaders(before, [0]))
    order = first.sampler._order(0)
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    position = first.position()
    assert position["samples"] == 4 * batch * before
    rest = []
    for loader in loaders(after, range(after)):
        loader.go_to(position, before, 1)
        loader.sampler._order = lambda number: order
        assert loader.batches_left() == (size - position["samples"]) // after // batch
        rest.append(list(loader.sampler))
    taken = order[: position["samples"]].tolist() + [index for share in rest for index in share]
    assert len(set(taken)) == len(taken) and size - len(taken) < after


FILES, PER_FILE, WINDOWS = 300, 7, 40
TABLE = np.repeat(np.arange(FILES), PER_FILE), np.full(FILES * PER_FILE, WINDOWS)
TOTAL = FILES * PER_FILE * WINDOWS


def windows_in(pieces):
    """How often each window of the table is in `pieces`."""
    return np.concatenate(
        [
            np.arange(episode * WINDOWS + start, episode * WINDOWS + stop)
            for episode, start, stop in zip(pieces.episode, pieces.start, pieces.stop)
        ]
        or [np.zeros(0, int)]
    )


@pytest.mark.parametrize("part", [0, 3])
def test_rlds_shares_of_a_pass_are_exact(part):
    schedule = PassSchedule(*TABLE, 5, Segment(MANY, 4, 16))
    shares = [schedule.share(part, rank) for rank in range(MANY)]
    seen = np.bincount(np.concatenate([windows_in(one.pieces) for one in shares]), minlength=TOTAL)
    assert (seen == 1).all()
    sizes = [one.pieces.windows for one in shares]
    assert max(sizes) - min(sizes) <= 2
    readers = Counter(file for one in shares for file in set(TABLE[0][one.pieces.episode].tolist()))
    assert sum(readers.values()) - FILES <= MANY - 1, "files are cut at the ranks' ends alone"
    assert schedule.batches_in(part) in {TOTAL // (MANY * 4), TOTAL // (MANY * 4) + 1}


@pytest.mark.parametrize("after", [1000, 6])
def test_rlds_resumes_with_another_number_of_ranks(after, monkeypatch):
    schedule, counted = PassSchedule(*TABLE, 5, Segment(MANY, 4, 16)), Counter()
    for owner, name in ((PassSchedule, "share"), (pass_schedule, "pass_order")):
        original = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *a, f=original, n=name: (counted.update([n]), f(*a))[1]
        )
    batches = schedule.batches_in(0) - 1
    later = schedule.followed_by(Segment(after, 8, 16), batches)
    assert counted["share"] == MANY and counted["pass_order"] <= 2, "linear in the ranks before"
    rest = windows_in(later.rest)
    assert len(np.unique(rest)) == len(rest) == TOTAL - batches * 4 * MANY
    shared = np.concatenate([windows_in(later.share(0, rank).pieces) for rank in range(after)])
    assert sorted(shared.tolist()) == sorted(rest.tolist())


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


def index_of(moments, lengths):
    """One episode a file."""
    count = len(lengths)
    yes = np.ones(count, bool)
    texts = np.array([f"task {number}".encode() for number in range(count)])
    sampled = np.random.RandomState(1).rand(count, QUANTILE_STEPS, 3).astype(np.float32)
    numbers = np.arange(count)
    passed = yes[:, None]
    return Index(
        numbers, numbers * 0, lengths, yes, ~yes, texts, passed, sampled, moments, moments
    )  # fmt: skip


@pytest.mark.parametrize("files", [300, 5000])
def test_statistics_of_1024_parts_are_those_of_all_steps(files):
    draw = np.random.RandomState(0)
    sizes = draw.randint(1, 1000, files)
    owned = [files_of_rank(sizes, rank, MANY) for rank in range(MANY)]
    assert sorted(sum(owned, [])) == list(range(files))
    lengths = draw.randint(1, 9, files)
    steps = [draw.randn(length, 3) * 5 + 100 for length in lengths]
    columns = [[s.mean(0), ((s - s.mean(0)) ** 2).sum(0), s.min(0), s.max(0)] for s in steps]
    moments = Moments(*(np.array(column) for column in zip(*columns)))
    parts = [moments.merged(lengths, np.array(numbers)) for numbers in owned if numbers]
    whole, of_parts = moments.merged(lengths, np.arange(files)), merged_statistics(parts)
    every = np.concatenate(steps)
    for found in (whole, of_parts):
        assert found["n"] == len(every)
        np.testing.assert_allclose(found["mean"][0], every.mean(0), rtol=1e-12)
        np.testing.assert_allclose(found["sqdiff"][0] / len(every), every.var(0), rtol=1e-9)
        assert (found["min"][0] == every.min(0)).all() and (found["max"][0] == every.max(0)).all()
    index = index_of(moments, lengths)
    mine = [index.taken(np.array(numbers, int)) for numbers in reversed(owned)]
    for field in fields(Index):
        one, other = (getattr(part, field.name) for part in (merged(mine), index))
        pairs = (
            zip(vars(one).values(), vars(other).values())
            if isinstance(one, Moments)
            else [(one, other)]
        )
        assert all(np.array_equal(*pair) for pair in pairs), "the same bits at any number of ranks"


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


def gathered(monkeypatch, of_rank, world):
    """Gathers give what `of_rank(rank)` would have brought."""
    monkeypatch.setattr(comparison.group, "gather_objects", lambda own: of_rank(own, world))


@pytest.mark.parametrize("odd", [0, 513, MANY - 1])
def test_one_rank_of_1024_is_named(odd, monkeypatch):
    pieces = [evidence_of(20, "b" if rank == odd else "a") for rank in range(MANY)]
    text = {id(one): repr(list(one.equal.items())).encode() for one in pieces}

    def every(own, world):
        if not isinstance(own, tuple) or not hasattr(own, "digest"):
            return [(one.equal, one.hints) for one in pieces]
        return [
            own._replace(digest=hashlib.blake2b(text[id(one)], digest_size=16).digest())
            for one in pieces
        ]

    gathered(monkeypatch, every, MANY)
    with pytest.raises(VerifyError) as caught:
        pieces[odd].require()
    message = str(caught.value)
    assert f"rank(s) [{odd}] differ from the others" in message and "parameter 0" in message
    assert "1023 rank(s), first rank" in message and len(message) < 1000


def test_the_search_for_odd_ranks_looks_at_each_a_few_times():
    for world in (128, MANY):
        Watched.looks = 0
        values = [Watched(rank % 64) for rank in range(world)]
        assert len(comparison.odd_ranks(values)) == world - world // 64
        assert world <= Watched.looks <= 6 * world


def test_random_streams_of_all_ranks_differ():
    with rng.kept():
        found = set()
        for rank in range(MANY):
            rng.seed(7, rank)
            now = Streams.now()
            found.add((now.torch_digest(), now.others_digest()))
        assert len(found) == len({one for one, _ in found}) == len({two for _, two in found})
        assert len(found) == MANY


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
