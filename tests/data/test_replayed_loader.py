"""The position of the host's own DataLoader on one rank: what is in it, and what may be missing."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from robomimic_ddp.data.sampling import ReplayedLoader
from tests.data.host_epochs import Host, Samples, indices

SIZE, BATCH = 50, 5
STAYING_WORKER = {"num_workers": 1, "persistent_workers": True}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


def replayed(**arguments):
    return ReplayedLoader(DataLoader(Samples(SIZE), batch_size=BATCH, **arguments))


def test_the_order_is_that_of_delivered_batches():
    """A worker is given indices before."""
    orders = []
    for workers in (0, 1):
        next(iterator := iter(loader := replayed(num_workers=workers)))
        orders.append(loader.position()["order"])
        del iterator
    assert orders[0] == orders[1]


def test_the_streams_of_a_pass_are_known_once_it_has_an_index():
    loader = replayed()
    assert len(list(loader)) == SIZE // BATCH
    iterator = iter(loader)
    assert loader.position()["sampler_random"] is None
    next(iterator)
    assert loader.position()["sampler_random"] is not None


def test_the_hosts_sampler_keeps_its_attributes():
    loader = replayed(sampler=RandomSampler(range(SIZE), num_samples=7))
    assert loader.batch_sampler.sampler.num_samples == 7


@pytest.mark.parametrize(
    "host", [[1, 2], DataLoader(Stream(), batch_size=2)], ids=["own loader", "stream"]
)
def test_a_loader_without_a_sampler_of_indices_has_no_history(host):
    loader = ReplayedLoader(host)
    before = loader.position()
    next(iterator := iter(loader))
    during = loader.position()
    list(iterator)
    for position in (before, during, loader.position()):
        assert position["iterations"] is None and position["has_workers"] is False


@pytest.mark.parametrize(("steps", "held"), [(3, True), (SIZE // BATCH, False)])
def test_states_of_earlier_versions_have_neither_generator_nor_workers(steps, held):
    def host():
        return Host(replayed(generator=torch.Generator().manual_seed(4)), held)

    whole, resumed = host(), host()
    whole.epoch(steps)
    position = whole.loader.position()
    del position["generator"], position["has_workers"]
    resumed.loader.seek(position, 1, 1)
    assert resumed.loader.position()["has_workers"] is False
    assert indices(resumed.epoch(2)) == indices(whole.epoch(2))


def test_workers_of_an_earlier_pass_are_in_the_position():
    loader = replayed(**STAYING_WORKER)
    in_passes = []
    for _ in range(2):
        next(iterator := iter(loader))
        in_passes.append(loader.position()["has_workers"])
        list(iterator)
    assert in_passes == [False, True] and loader.position()["has_workers"] is True
    resumed = replayed(**STAYING_WORKER)
    resumed.seek(loader.position(), 1, 1)
    assert resumed.position()["has_workers"] is True
