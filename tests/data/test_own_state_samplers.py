"""Resumes the pass of a sampler that keeps private state: every sample comes as it would have, or
the log gives the reason.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler

from robomimic_ddp.data.sampling import ReplayedLoader, train_loader
from robomimic_ddp.errors import CheckpointError
from tests.data.host_epochs import Host, Samples, indices

SIZE, BATCH, WORLD = 50, 5, 2


class OwnStream(Sampler):
    """Draws from a private generator, which is never seeded again between passes."""

    def __init__(self, seed=0):
        self.draw = np.random.RandomState(seed)

    def __len__(self):
        return SIZE

    def __iter__(self):
        return iter(self.draw.permutation(SIZE).tolist())


def of_torch():
    return RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(0))


class Epochs(OwnStream):
    """Also draws from the global streams."""

    def __iter__(self):
        own = self.draw.permutation(SIZE)
        return iter(own[np.random.permutation(SIZE)].tolist())


def several(sampler, rank=0):
    kwargs = {"dataset": Samples(SIZE), "batch_size": BATCH, "sampler": sampler}
    return train_loader(
        DataLoader, kwargs, rank=rank, world_size=WORLD, seed=3, batch_size_per_rank=BATCH
    )


def one(sampler, workers=0):
    # The host's own words: each loader seeds its workers from the global stream.
    torch.manual_seed(9), np.random.seed(9)
    loader = DataLoader(
        Samples(SIZE), batch_size=BATCH, sampler=sampler, num_workers=workers, drop_last=True
    )
    return ReplayedLoader(loader)


@pytest.mark.parametrize("make", [OwnStream, Epochs, of_torch])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("steps", [3, 13])
def test_several_ranks_lose_and_repeat_nothing(make, held, steps):
    for rank in range(WORLD):
        whole = Host(several(make(), rank), held)
        whole.epoch(steps)
        position = whole.loader.position()
        resumed = Host(several(make(), rank), held)
        resumed.loader.seek(position, WORLD, 1)
        for _ in range(2):
            assert indices(whole.epoch(steps)) == indices(resumed.epoch(steps))
        assert whole.loader.position() == resumed.loader.position()


@pytest.mark.parametrize(
    ("make", "held", "steps", "workers"),
    [
        *((make, held, 3, 0) for make in (OwnStream, of_torch) for held in (False, True)),
        *((of_torch, held, 20, 0) for held in (False, True)),
        (OwnStream, True, 3, 1),
        (OwnStream, True, 13, 1),
    ],
)
def test_one_rank_loses_and_repeats_nothing(make, held, steps, workers):
    """A data worker asks the sampler for indices as soon as the host makes an iterator."""
    whole = Host(one(make(), workers), held)
    whole.epoch(steps)
    position = whole.loader.position()
    resumed = Host(one(make(), workers), held)
    resumed.loader.seek(position, 1, 1)
    for key in ("batches", "random", "sampler_random", "has_workers"):
        assert repr(resumed.loader.position().get(key)) == repr(position.get(key))
    for _ in range(2):
        assert indices(whole.epoch(steps)) == indices(resumed.epoch(steps))


@pytest.mark.parametrize(
    ("before", "held", "workers"),
    [
        *(
            (before, held, 0)
            for before in ([3, 3], [13], [SIZE // BATCH])
            for held in (False, True)
        ),
        ([3, 3], True, 1),
        ([13], False, 1),
    ],
)
def test_a_generator_of_the_loader_stands_where_it_stood(before, held, workers):
    """Each iteration draws the workers' seed from it, too, between the orders of two passes."""

    def host() -> Host:
        seeded = {"generator": torch.Generator().manual_seed(4), "num_workers": workers}
        loader = DataLoader(Samples(SIZE), batch_size=BATCH, shuffle=True, **seeded)
        return Host(ReplayedLoader(loader), held)

    whole, resumed = host(), host()
    for steps in before:
        whole.epoch(steps)
    resumed.loader.seek(whole.loader.position(), 1, 1)
    for _ in range(2):
        assert indices(whole.epoch(7)) == indices(resumed.epoch(7))


@pytest.mark.parametrize("make", [several, one])
def test_an_order_that_cannot_be_found_again_is_refused(make):
    """As a sampler that is seeded by a clock, or other data, would give."""
    whole = Host(make(OwnStream()), held=True)
    whole.epoch(3)
    resumed = make(OwnStream(seed=1))
    with pytest.raises(CheckpointError, match="the sampler OwnStream gives another order"):
        resumed.seek(whole.loader.position(), WORLD if make is several else 1, 1)
        iter(resumed)


def test_a_sampler_that_is_further_than_the_saved_one_is_refused():
    whole = one(OwnStream())
    list(whole)
    next(iterator := iter(whole))
    resumed = one(OwnStream())
    list(resumed), list(resumed)
    resumed.seek(whole.position(), 1, 1)
    del iterator
    with pytest.raises(CheckpointError, match="the sampler OwnStream gives another order"):
        iter(resumed)


def test_samples_that_have_names_are_in_the_order_that_was_saved():
    def named(order):
        return ReplayedLoader(DataLoader({"a": 1, "b": 2, "c": 3}, sampler=order))

    whole = named("abc")
    next(iterator := iter(whole))
    position, rest = whole.position(), [*map(int, iterator)]
    for order, is_same in (("abc", True), ("bca", False)):
        resumed = named(order)
        resumed.seek(position, 1, 1)
        with nullcontext() if is_same else pytest.raises(CheckpointError, match="another order"):
            assert [*map(int, resumed)] == rest


def test_numbers_of_any_type_are_the_same_order():
    orders = set()
    for order in ([2, 0, 1], np.array([2, 0, 1]), torch.tensor([2, 0, 1])):
        next(iterator := iter(loader := ReplayedLoader(DataLoader(Samples(3), sampler=order))))
        orders.add(loader.position()["order"])
        del iterator
    assert len(orders) == 1


def test_a_place_is_kept_although_a_digest_was_asked_for_before():
    whole = Host(several(OwnStream()), held=True)
    whole.epoch(2)
    resumed = several(OwnStream())
    resumed.order_digest()
    resumed.seek(whole.loader.position(), WORLD, 1)
    assert resumed.position() == whole.loader.position()
    assert indices(iter(resumed)) == indices(whole.epoch(3))


def test_a_position_has_the_length_of_each_iteration_of_the_sampler():
    """As in the states that are on disk already."""
    loader = one(OwnStream())
    assert len(list(loader)) == SIZE // BATCH
    next(iterator := iter(loader))
    assert loader.position()["iterations"] == [-1]
    del iterator
    assert loader.position()["iterations"] == [-1, BATCH]


def test_an_iterator_that_the_host_drops_before_the_resume_is_not_the_pass():
    """Its worker has asked for indices, as the pass that resumes has not."""
    whole = Host(one(OwnStream()), held=True)
    whole.epoch(3)
    resumed = one(OwnStream(), workers=1)
    iter(resumed)
    resumed.drop_iterator()
    resumed.seek({**whole.loader.position(), "order": None}, 1, 1)
    assert len(indices(resumed)) == SIZE // BATCH - 3


def test_the_streams_of_the_run_stay_where_they_are():
    whole = one(Epochs())
    assert len(list(whole)) == SIZE // BATCH
    resumed = one(Epochs())
    torch.manual_seed(3), np.random.seed(3)
    expected = np.random.rand()
    np.random.seed(3)
    resumed.seek(whole.position(), 1, 1)
    assert np.random.rand() == expected


class OneByOne(OwnStream):
    """Draws each index as it is asked for."""

    def __iter__(self):
        return (int(self.draw.randint(SIZE)) for _ in range(SIZE))


def test_another_batch_size_begins_the_pass_after_what_was_drawn():
    whole = Host(one(OneByOne()), held=True)
    whole.epoch(3)
    resumed = ReplayedLoader(DataLoader(Samples(SIZE), batch_size=4, sampler=OneByOne()))
    line = resumed.seek(whole.loader.position(), 1, 1)
    assert line.endswith("begins a new pass, since the batch size has changed")
    sampler = OneByOne()
    sampler.draw.randint(SIZE, size=3 * BATCH)
    assert sum(indices(resumed), []) == list(sampler)


def test_a_position_that_waits_for_its_pass_is_that_of_the_run():
    whole = Host(one(OwnStream()), held=True)
    whole.epoch(3)
    position = whole.loader.position()
    resumed = one(OwnStream())
    resumed.seek(position, 1, 1)
    assert resumed.position() is position
