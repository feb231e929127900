"""Shares of a pass: exact over ranks, another order every pass, reproducible from the seed."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from robomimic_ddp.data.sampling import ShardedSampler, order_of, train_loader, valid_loader
from robomimic_ddp.errors import DataError
from tests.data.host_epochs import Stream

sizes = st.integers(0, 200)
worlds = st.integers(1, 9)
batches = st.integers(1, 17)
seeds = st.integers(-(2**70), 2**70)


class Numbers(Dataset):
    """Sample i is the number i."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return np.int64(self.size)  # as MetaDataset, whose length is a numpy sum

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        return index


class CustomWeightedRandomSampler(WeightedRandomSampler):
    """By name the host's: draws with numpy's global stream, which differs between ranks."""

    def __iter__(self):
        raise AssertionError("the host's own draw depends on the rank")


class EveryOther(Sampler):
    """A host's own sampler: draws from all three global streams."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        for _ in range(self.size):
            yield (
                random.randrange(10) + 10 * np.random.randint(10) + 100 * int(torch.randint(10, ()))
            )


def shares(order, size, world, drop_last, passes=1):
    """[pass][rank] -> list of indices, by iterating real samplers."""
    samplers = [
        ShardedSampler(order, size, rank=rank, world_size=world, drop_last=drop_last)
        for rank in range(world)
    ]
    return [[list(sampler) for sampler in samplers] for _ in range(passes)]


def loaders(make, size, world, batch, seed=0, **kwargs):
    kwargs = {"dataset": Numbers(size), "batch_size": batch, **kwargs}
    return [
        make(DataLoader, kwargs, rank=r, world_size=world, seed=seed, batch_size_per_rank=batch)
        for r in range(world)
    ]


@settings(max_examples=40)
@given(sizes, worlds, batches, st.booleans())
def test_train_loaders_give_equal_full_batches_that_make_up_global_batches(
    size, world, batch, shuffle
):
    assume(world > 1 and size >= world * batch)
    per_rank = loaders(train_loader, size, world, batch, shuffle=shuffle, drop_last=False)
    passes = [[[b.tolist() for b in loader] for loader in per_rank] for _ in range(2)]
    steps = size // (world * batch)
    order = order_of(Numbers(size), None, shuffle, 0)
    for number, delivered in enumerate(passes):
        assert [len(rank) for rank in delivered] == [steps] * world
        for step in range(steps):
            assert [len(rank[step]) for rank in delivered] == [batch] * world
            together = sorted(index for rank in delivered for index in rank[step])
            piece = order(number)[step * world * batch : (step + 1) * world * batch]
            assert together == sorted(piece.tolist())
    assert [len(loader) for loader in per_rank] == [steps] * world
    assert [loader.samples_delivered for loader in per_rank] == [2 * steps * batch] * world


@given(sizes, st.integers(2, 9), batches, st.booleans(), st.none() | st.integers(0, 30))
def test_valid_loaders_give_the_first_samples_once_and_the_same_each_epoch(
    size, world, batch, shuffle, steps
):
    # The batch per rank differs from the host's, as under ddp.batch=global.
    kwargs = {"dataset": Numbers(size), "batch_size": batch, "shuffle": shuffle, "drop_last": True}
    per_rank = [
        valid_loader(DataLoader, kwargs, rank=rank, world_size=world, seed=5, batch_size_per_rank=3)
        for rank in range(world)
    ]
    wanted = size if steps is None else min(size, steps * batch)
    expected = order_of(Numbers(size), None, shuffle, 5)(0)[:wanted].tolist()
    for _ in range(2):
        seen = [[b.tolist() for b in loader.limited(steps)] for loader in per_rank]
        assert [len(rank) for rank in seen] == [len(loader.limited(steps)) for loader in per_rank]
        assert sorted(i for rank in seen for b in rank for i in b) == sorted(expected)
        assert all(0 < len(b) <= 3 for rank in seen for b in rank)
    assert sum(loader.samples_delivered for loader in per_rank) == 2 * wanted


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=60), worlds, st.booleans(), seeds)
def test_weighted_shares_are_the_single_process_draw(weights, world, replacement, seed):
    size = len(weights)
    sampler = CustomWeightedRandomSampler(np.asarray(weights), size, replacement=replacement)
    per_rank = shares(order_of(Numbers(size), sampler, False, seed), size, world, False, passes=2)
    single = shares(order_of(Numbers(size), sampler, False, seed), size, 1, False, passes=2)
    for split, [whole] in zip(per_rank, single):
        merged = np.empty(size, dtype=np.int64)
        for rank in range(world):
            merged[rank::world] = split[rank]
        assert merged.tolist() == whole
        if not replacement:
            assert sorted(whole) == list(range(size))


def test_weights_beyond_the_limit_of_torch():
    size = 2**24 + 10
    weights = np.zeros(size)
    weights[-5:] = 1.0
    sampler = CustomWeightedRandomSampler(weights, num_samples=1000)
    with pytest.raises(RuntimeError, match="2\\^24"):
        torch.multinomial(sampler.weights, 1)
    drawn = order_of(Numbers(size), sampler, False, 0)(0)
    assert set(drawn.tolist()) == set(range(size - 5, size))


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, float("nan")], [2.0, -1.0]])
def test_impossible_weights_are_a_clear_error(weights):
    sampler = WeightedRandomSampler(weights, 2)
    with pytest.raises(DataError, match="sampling weights.*train.data"):
        order_of(Numbers(2), sampler, False, 0)(0)


def test_torch_samplers_keep_their_meaning_and_draw_from_the_seed_alone():
    data = Numbers(50)
    assert order_of(data, SequentialSampler(data), None, 0)(3).tolist() == list(range(50))
    assert order_of(data, None, None, 0)(3).tolist() == list(range(50))
    subset = order_of(data, SubsetRandomSampler([4, 7, 9, 11, 30]), None, 0)
    assert sorted(subset(0).tolist()) == [4, 7, 9, 11, 30]
    drawn = order_of(data, RandomSampler(data, replacement=True, num_samples=500), None, 0)(0)
    assert len(drawn) == 500 and len(set(drawn.tolist())) <= 50
    uniform = order_of(data, None, True, 9)(3)
    torch.manual_seed(1)
    assert order_of(data, RandomSampler(data), None, 9)(3).tolist() == uniform.tolist()
    some = [4, 7, 9, 11, 30, 31, 32, 40]
    drawn = order_of(data, SubsetRandomSampler(some), None, 9)(3).tolist()
    assert drawn == np.array(some)[order_of(Numbers(8), None, True, 9)(3)].tolist()
    for size in (20, 120):  # a part of a pass; more than one
        orders = [order_of(data, RandomSampler(data, num_samples=size), None, 9) for _ in "ab"]
        assert len(orders[0](0)) == size and len(set(orders[0](0))) == min(size, 50)
        assert orders[0](1).tolist() == orders[1](1).tolist() != orders[0](0).tolist()
    seeded = RandomSampler(data, num_samples=20, generator=torch.Generator())
    order = order_of(data, seeded, None, 9)
    assert order(1).tolist() == order(1).tolist()


def test_weights_that_a_host_changes_count_from_the_next_pass_on():
    sampler = WeightedRandomSampler([1.0, 0.0, 0.0], 30)
    order = order_of(Numbers(3), sampler, False, 0)
    assert set(order(0)) == {0}
    sampler.weights = torch.tensor([0.0, 1.0, 1.0])
    assert set(order(1)) == {1, 2}


def test_a_hosts_own_sampler_is_drawn_alike_on_ranks_whose_streams_differ():
    drawn = []
    for rank in range(2):
        random.seed(rank), np.random.seed(rank), torch.manual_seed(rank)
        order = order_of(Numbers(1000), EveryOther(40), None, 3)
        drawn.append([order(0).tolist(), order(1).tolist(), order(0).tolist()])
        after = random.random(), np.random.rand(), torch.rand(()).item()
        random.seed(rank), np.random.seed(rank), torch.manual_seed(rank)
        assert after == (random.random(), np.random.rand(), torch.rand(()).item())
    assert drawn[0] == drawn[1]
    assert drawn[0][0] == drawn[0][2] != drawn[0][1]


def test_a_weighted_sampler_that_does_more_is_iterated_not_replaced():
    class OnlyEven(WeightedRandomSampler):
        def __iter__(self):
            return (2 * index for index in super().__iter__())

    order = order_of(Numbers(100), OnlyEven([1.0] * 50, 30), None, 0)
    assert all(index % 2 == 0 for index in order(0).tolist())


def test_digests_tell_shares_apart_and_orders_alike():
    per_rank = loaders(train_loader, 100, 2, 5, shuffle=True)
    before = [loader.digest() for loader in per_rank]
    first = [next(iter(loader)).tolist() for loader in per_rank]
    order = order_of(Numbers(100), None, True, 0)(0).tolist()
    assert first == [order[0:10:2], order[1:10:2]]  # asking for the digest took no pass
    assert before == [loader.digest() for loader in per_rank]
    assert len(set(before)) == 2 and len({loader.order_digest() for loader in per_rank}) == 1
    assert per_rank[0].next_pass == 1
    list(per_rank[0])
    assert per_rank[0].digest() != before[0]


def test_a_share_is_known_before_its_pass_and_delivered_in_it():
    [_, loader] = loaders(train_loader, 9, 2, 1, shuffle=True)
    share = loader.share_of_pass.tolist()
    assert len(share) == 4 and [int(index) for index in loader] == share


@pytest.mark.parametrize(
    "indices, telling, once",
    [
        (list(range(10)), True, True),
        (list(range(9)), False, True),
        (list(range(9)) * 2, False, False),
        ([0] * 1_100 + list(range(1, 10)), True, False),
    ],
)
def test_a_share_tells_ranks_apart_from_ten_samples_on(indices, telling, once):
    def sampler():
        order = np.repeat(np.array(indices), 2)
        return ShardedSampler(
            lambda number: order + number, len(order), rank=1, world_size=2, drop_last=True
        )

    asked = sampler()
    assert asked.each_sample_once is once
    assert sampler().telling_digest() == (sampler().digest() if telling else None)
    assert asked.current_pass == 0 and list(asked) == indices
    first = asked.order_digest()
    assert first == sampler().order_digest()
    assert list(asked) == [index + 1 for index in indices] and asked.order_digest() != first


def test_workers_are_seeded_by_rank_and_pass():
    """Else an augmentation would draw the same numbers on all ranks, or in all passes."""
    seeds = []
    for rank in range(2):
        loader = loaders(train_loader, 40, 2, 4, seed=5, shuffle=True)[rank]
        for _ in range(3):
            list(loader)
            seeds.append(loader.loader.generator.initial_seed())
    assert len(set(seeds)) == 6
    alike = []
    for seed in (-5, 2**64 - 5):
        loader = loaders(train_loader, 40, 2, 4, seed=seed, shuffle=True)[0]
        first = next(iter(loader)).tolist()
        alike.append((first, loader.loader.generator.initial_seed()))
    assert alike[0] == alike[1]
    resumed = loaders(train_loader, 40, 2, 4, seed=5, shuffle=True)[1]
    resumed.sampler.next_pass = 2
    list(resumed)
    assert resumed.loader.generator.initial_seed() == seeds[-1] and resumed.next_pass == 3


@pytest.mark.parametrize("make", [train_loader, valid_loader])
@pytest.mark.parametrize("own", [None, SequentialSampler(Numbers(3))])
def test_on_one_rank_a_batch_larger_than_the_set_is_a_clear_error(make, own):
    def build(**kwargs):
        kwargs = {"dataset": Numbers(9 if own else 3), "sampler": own, "drop_last": True, **kwargs}
        return make(DataLoader, kwargs, rank=0, world_size=1, seed=0, batch_size_per_rank=2)

    role = "training" if make is train_loader else "validation"
    with pytest.raises(DataError, match=f"the {role} set has 3 samples, but a batch takes 4"):
        build(batch_size=4)
    assert len(build(batch_size=3)) == 1 and len(build()) == 3
    assert len(build(dataset=Numbers(1), sampler=None)) == 1
    with pytest.raises(DataError, match="has 0 samples, but a batch takes 1"):
        build(dataset=Numbers(0), sampler=None)
    assert len(build(batch_size=4, drop_last=False)) == 1
    assert len(build(batch_size=None, drop_last=False)) == 3


def test_on_one_rank_the_hosts_loader_is_made_with_the_hosts_arguments():
    made = []

    def make(**kwargs):
        made.append(kwargs)
        return DataLoader(**kwargs)

    data = TensorDataset(torch.arange(10))
    kwargs = {"dataset": data, "batch_size": 4, "shuffle": True, "drop_last": True}
    for build in (train_loader, valid_loader):
        loader = build(make, kwargs, rank=0, world_size=1, seed=0, batch_size_per_rank=7)
        assert type(loader) is DataLoader and made.pop() == kwargs
        torch.manual_seed(0)
        ours = [batch[0].tolist() for batch in loader]
        torch.manual_seed(0)
        assert ours == [batch[0].tolist() for batch in DataLoader(**kwargs)]


def test_the_hosts_other_arguments_reach_the_loader():
    def collate(samples):
        return tuple(samples)

    [_, loader] = loaders(train_loader, 20, 2, 4, collate_fn=collate, timeout=0, shuffle=False)
    assert list(loader) == [(1, 3, 5, 7), (9, 11, 13, 15)]
    assert loader.batch_size == 4 and len(loader.dataset) == 20
    with pytest.raises(AttributeError, match="no_such"):
        print(loader.no_such_attribute)


def test_a_set_smaller_than_a_global_batch_is_a_clear_error():
    with pytest.raises(DataError, match=r"31 samples.*32 \(4 ranks x 8\).*fewer ranks"):
        loaders(train_loader, 31, 4, 8, shuffle=True)


@pytest.mark.parametrize("make", [train_loader, valid_loader])
def test_loaders_are_freed_with_their_last_reference(make):
    """torch waits 5 s per persistent worker when the cycle collector frees a loader."""
    [loader, _] = loaders(make, 20, 2, 4, shuffle=True)
    list(loader)
    inner = weakref.ref((loader if make is train_loader else loader.limited(None)).loader)
    gc.disable()
    try:
        del loader, _
        assert inner() is None
    finally:
        gc.enable()


class NoLength(Sampler):
    def __init__(self):
        """torch 2.0 wants a data source otherwise."""

    def __iter__(self):
        return iter(range(10))


class WrongLength(NoLength):
    def __len__(self):
        return 11


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dataset": Stream(10)}, "IterableDataset.*droid_rlds.*DDPUtils.sharded"),
        ({"batch_sampler": BatchSampler(range(10), 2, True), "batch_size": 1}, "batch_sampler"),
        ({"batch_size": None}, "batch_size=None"),
        ({"sampler": DistributedSampler(Numbers(10), 2, 0)}, "DistributedSampler.*Remove it"),
        ({"sampler": NoLength()}, "NoLength.*no length"),
    ],
)
@pytest.mark.parametrize("make", [train_loader, valid_loader])
def test_what_cannot_be_split_is_a_clear_error(make, kwargs, message):
    kwargs = {"dataset": Numbers(10), "batch_size": 2, **kwargs}
    with pytest.raises(DataError, match=message):
        make(DataLoader, kwargs, rank=0, world_size=2, seed=0, batch_size_per_rank=2)


def test_a_sampler_that_lies_about_its_length_is_a_clear_error():
    [loader, _] = loaders(train_loader, 10, 2, 2, sampler=WrongLength())
    with pytest.raises(DataError, match="the length 11 but gave 10"):
        next(iter(loader))
