"""A loader that resumes at a saved position delivers exactly what would have come."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from robomimic_ddp.data.sampling import ReplayedLoader, train_loader
from robomimic_ddp.data.sampling.pass_order import is_stateless
from robomimic_ddp.distributed import rng
from robomimic_ddp.errors import CheckpointError
from tests.data.host_epochs import Host, Samples, indices


def sharded(size, world, rank, batch, sampler=None):
    kwargs = {"dataset": Samples(size), "batch_size": batch}
    kwargs |= {"shuffle": True} if sampler is None else {"sampler": sampler}
    return train_loader(
        DataLoader, kwargs, rank=rank, world_size=world, seed=3, batch_size_per_rank=batch
    )


@settings(max_examples=25)
@given(
    size=st.integers(8, 60),
    batch=st.integers(1, 4),
    steps=st.integers(1, 20),
    held=st.booleans(),
    epochs=st.integers(1, 3),
)
def test_the_same_ranks_resume_at_the_index(size, batch, steps, held, epochs):
    for rank in range(2):
        whole = Host(sharded(size, 2, rank, batch), held)
        for _ in range(epochs):
            whole.epoch(steps)
        position = whole.loader.position()
        resumed_loader = sharded(size, 2, rank, batch)
        resumed = Host(resumed_loader, held)  # begun before the position is known, as in train()
        resumed_loader.seek(position, 2, epochs)
        for _ in range(2):
            assert indices(whole.epoch(steps)) == indices(resumed.epoch(steps))
        assert whole.loader.position() == resumed_loader.position()


def test_a_stop_after_an_epochs_last_step_ends_its_pass():
    """What is left of the epoch is nothing, and the next one begins the pass after, as ever."""
    whole = Host(sharded(43, 2, 0, 4), held=False)
    iterator = iter(whole.loader)
    for _ in range(3):
        next(iterator)
    position = whole.loader.position()
    assert position["samples"] == 24
    whole.loader.drop_iterator()
    resumed = Host(sharded(43, 2, 0, 4), held=False)
    resumed.loader.seek(position, 2, 1)
    assert resumed.epoch(0) == []
    assert indices(whole.epoch(3)) == indices(resumed.epoch(3))


@settings(max_examples=40)
@given(
    size=st.integers(60, 120),
    batch=st.integers(1, 3),
    steps=st.integers(1, 4),
    before=st.integers(2, 4),
    after=st.integers(2, 5),
)
def test_another_number_of_ranks_shares_the_rest(size, batch, steps, before, after):
    taken, positions = [], []
    for rank in range(before):
        host = Host(sharded(size, before, rank, batch), held=True)
        taken += [index for part in indices(host.epoch(steps)) for index in part]
        positions.append(host.loader.position())
    assert all(position == positions[0] for position in positions)
    rest, lengths = [], []
    for rank in range(after):
        loader = sharded(size, after, rank, batch)
        loader.seek(positions[0], before, 1)
        lengths.append(loader.batches_left() * batch)
        own = [index for part in indices(loader) for index in part]
        rest += own
        lengths.append(len(own))
    assert len(set(lengths)) == 1
    assert len(set(taken + rest)) == len(taken) + len(rest), "a sample came twice in one pass"
    assert size - len(taken) - len(rest) < batch * after, "more than one global batch was lost"


def test_iterating_leaves_the_random_streams_alone():
    before = rng.capture()
    kwargs = {"dataset": range(20), "batch_size": 2, "shuffle": True}
    loader = train_loader(DataLoader, kwargs, rank=1, world_size=2, seed=3, batch_size_per_rank=2)
    list(loader)
    assert str(rng.capture()) == str(before)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(("steps", "epochs"), [(3, 3), (11, 1), (25, 2)])
def test_one_rank_resumes_at_the_bit(held, steps, epochs):
    def make():
        loader = DataLoader(Samples(43), batch_size=4, shuffle=True, drop_last=True)
        return Host(ReplayedLoader(loader), held)

    def train(host):
        return [
            (i.tolist(), n.tolist(), t.tolist(), float(torch.rand(())))
            for i, n, t in host.epoch(steps)
        ]

    with rng.kept():
        torch.manual_seed(0)
        np.random.seed(0)
        whole = make()
        for _ in range(epochs):
            train(whole)
        position, streams = whole.loader.position(), rng.capture()
        expected = [train(whole) for _ in range(3)]
        torch.manual_seed(9)
        resumed = make()
        rng.restore(streams)
        resumed.loader.seek(position, 1, epochs)
        assert [train(resumed) for _ in range(3)] == expected


def replayed(batch=4, drop_last=True):
    return ReplayedLoader(
        DataLoader(Samples(43), batch_size=batch, shuffle=True, drop_last=drop_last)
    )


def draw(iterator, count):
    return [(i.tolist(), n.tolist(), t.tolist()) for i, n, t in itertools.islice(iterator, count)]


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_run_of_one_rank_is_stopped_twice_in_a_pass(begun_before):
    with rng.kept():
        torch.manual_seed(0)
        whole = replayed()
        iterator, saved = iter(whole), []
        for _ in range(2):
            draw(iterator, 3)
            saved.append((whole.position(), rng.capture()))
        expected = draw(iterator, 4)
        loaders = []
        for position, streams in saved:
            resumed = replayed()
            again = iter(resumed) if begun_before else None
            torch.manual_seed(5)
            rng.restore(streams)
            assert "resumes after" in resumed.seek(position, 1, 0)
            assert resumed.batches_left() == 10 - position["batches"]
            again = again or iter(resumed)
            assert str(rng.capture()) == str(streams), "the run's streams were moved"
            loaders.append((resumed, again))
        (first, again), (second, last) = loaders
        rng.restore(saved[0][1])
        draw(again, 3)
        assert str(first.position()) == str(saved[1][0])
        rng.restore(saved[1][1])
        assert iter(last) is last
        assert draw(last, 4) == expected and second.batches_left() == 0
        assert next(last, None) is None
        between = {"kind": "replay", "batches": None, "iterations": None, "generator": None}
        between["has_workers"] = False
        assert second.position() == between
        assert second.batches_left() == 10


def test_a_sampler_that_began_after_its_iteration_is_resumed_where_it_began():
    """As that of a second loader, whose host makes the iterations of both first."""
    with rng.kept():
        torch.manual_seed(0)
        whole = replayed()
        iterator = iter(whole)
        torch.rand(3)
        draw(iterator, 3)
        position, streams = whole.position(), rng.capture()
        expected = draw(iterator, 4)
        resumed = replayed()
        rng.restore(streams)
        resumed.seek(position, 1, 0)
        assert draw(iter(resumed), 4) == expected


def test_a_pass_of_another_order_is_refused_in_its_middle():
    position = sharded(43, 2, 0, 4).position()
    assert position == {"kind": "pass", "pass": 0, "samples": 0, "order": None}
    loader = sharded(43, 2, 0, 4)
    next(iter(loader))
    position = loader.position()
    assert position["samples"] == 8 and len(position["order"]) == 64
    with pytest.raises(CheckpointError, match="the shuffled dataset gives another order"):
        sharded(44, 2, 0, 4).seek(position, 2, 0)
    with pytest.raises(CheckpointError, match="the sampler SequentialSampler gives another"):
        sharded(43, 2, 0, 4, SequentialSampler(range(43))).seek(position, 2, 0)


@pytest.mark.parametrize(
    "position, words",
    [
        (None, "begins a new pass"),
        ({"kind": "pass", "pass": 1, "samples": 3}, "begins a new pass"),
        (
            {"kind": "replay", "batches": None, "batch_size": 3, "iterations": None},
            "batch size has changed",
        ),
        (replayed().position(), "resumes with its next pass"),
    ],
)
def test_without_a_place_that_fits_one_rank_begins_a_pass(position, words):
    loader = replayed()
    assert words in loader.seek(position, 2, 1)
    assert loader.batches_left() == len(list(loader)) == 10


def test_samplers_with_a_generator_of_their_own_are_iterated_as_often_as_they_were():
    seeded = {"generator": torch.Generator()}
    for sampler, repeated in (
        (None, None),
        (SequentialSampler(range(3)), None),
        (RandomSampler(range(3)), RandomSampler(range(3), **seeded)),
        (SubsetRandomSampler([1, 2]), SubsetRandomSampler([1, 2], **seeded)),
        (WeightedRandomSampler([1.0], 3), WeightedRandomSampler([1.0], 3, **seeded)),
    ):
        assert is_stateless(sampler)
        assert repeated is None or not is_stateless(repeated)
    assert not is_stateless([2, 0, 1])


def test_a_dropped_iterator_has_no_position():
    loader = replayed()
    iterator = iter(loader)
    draw(iterator, 2)
    assert loader.position()["batches"] == 2 and loader.position()["batch_size"] == 4
    loader.drop_iterator()
    assert loader.position()["batches"] is None and loader.batches_left() == 10


@pytest.mark.bad_input
@pytest.mark.timeout(20)
def test_a_position_after_the_end_of_a_pass_takes_no_time():
    loader = replayed()
    iterator = iter(loader)
    draw(iterator, 3)
    resumed = replayed()
    resumed.seek({**loader.position(), "batches": 10**12}, 1, 1)
    with pytest.raises(CheckpointError):
        iter(resumed)


def test_a_hosts_own_loader_needs_no_batch_size():
    loader = ReplayedLoader([1, 2, 3])
    iterator = iter(loader)
    assert next(iterator) == 1 and loader.position()["batch_size"] is None
    assert list(iterator) == [2, 3]
    resumed = ReplayedLoader([1, 2, 3])
    assert "resumes with its next pass" in resumed.seek(loader.position(), 1, 1)


def test_an_iterator_has_the_length_of_a_pass_as_that_of_torch_has():
    host = DataLoader(Samples(7), batch_size=2)
    iterators = [iter(host), iter(ReplayedLoader(host)), iter(sharded(43, 2, 1, 4))]
    assert [len(iterator) for iterator in iterators] == [4, 4, 5]
    next(iterators[2])
    assert len(iterators[2]) == 5


def test_batches_left_of_a_sharded_pass():
    loader = sharded(43, 2, 1, 4)
    assert loader.batches_left() == 5
    iterator = iter(loader)
    next(iterator), next(iterator)
    assert loader.batches_left() == 3
    other = sharded(43, 2, 1, 4)
    other.seek(loader.position(), 2, 0)
    assert other.batches_left() == 3
    assert len(list(iterator)) == 3 and loader.batches_left() == 5
    place = {"kind": "pass", "pass": 1, "samples": 0, "order": None}
    assert loader.position() == place


@pytest.mark.parametrize("position", [None, {"kind": "replay", "batches": 3}])
def test_a_pass_that_no_epoch_has_drawn_from_begins(position):
    loader = sharded(43, 2, 1, 4)
    loader.sampler.next_offset = 8
    assert loader.seek(position, 1, 6) == "data: a new pass begins (number 7)"
    assert (loader.next_pass, loader.sampler.next_offset) == (6, 0)
    assert "(number 7)" in loader.seek(position, 1, 2)


@pytest.mark.parametrize("number", [0, 4])
def test_a_dropped_rest_of_a_pass_is_followed_by_the_next(number):
    loader = sharded(12, 2, 1, 2)
    loader.seek({"kind": "pass", "pass": number, "samples": 4, "order": None}, 2, 1)
    assert loader.batches_left() == 2
    loader.drop_iterator()
    assert loader.position()["pass"] == number + 1 and loader.batches_left() == 3


def test_what_a_resume_says_of_the_data():
    place = {"kind": "pass", "pass": 2, "samples": 24, "order": None}
    said = "data: pass 3 resumes after 24 of 43 samples"
    assert sharded(43, 2, 1, 4).seek(place, 2, 1) == said
    assert sharded(43, 2, 1, 4).seek(place, 3, 1) == said + ", the rest split again over the ranks"


def test_one_rank_sees_the_hosts_own_batches():
    def loader():
        torch.manual_seed(0)
        np.random.seed(0)
        return DataLoader(Samples(20), batch_size=3, shuffle=True)

    with rng.kept():
        plain = loader()
        expected = [str(list(plain)) for _ in range(2)]
        replayed = ReplayedLoader(loader())
        assert len(replayed) == len(plain) and replayed.batch_size == 3
        assert [str(list(replayed)) for _ in range(2)] == expected


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("held, stopped_after", [(False, 0), (True, 0), (True, 2)])
def test_workers_that_persist_draw_no_other_numbers_after_a_resume(
    held, stopped_after, own_generator
):
    """torch draws the seed of workers as it starts them, once in a process."""

    def made():
        generator = torch.Generator().manual_seed(7) if own_generator else None
        workers = {"num_workers": 1, "persistent_workers": True, "generator": generator}
        return ReplayedLoader(DataLoader(Samples(12), batch_size=2, shuffle=True, **workers))

    def numbers(host, steps=6):
        return [*indices(host.epoch(steps)), torch.rand(1).item()]

    torch.manual_seed(5)
    whole = Host(made(), held)
    for steps in (6, 6, stopped_after):
        numbers(whole, steps)
    position, state = whole.loader.position(), rng.capture()
    expected = [numbers(whole) for _ in range(3)]
    resumed = Host(made(), held)
    resumed.loader.seek(position, 1, 2)
    rng.restore(state)
    assert [numbers(resumed) for _ in range(3)] == expected
