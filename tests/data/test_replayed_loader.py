"""The position of the host's own DataLoader on one rank: what is in it, and what may be missing."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from robomimic_ddp.data.sampling import ReplayedLoader
from tests.data.host_epochs import Samples, Stream

SIZE, BATCH = 50, 5
STAYING_WORKER = {"num_workers": 1, "persistent_workers": True}


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
    for _ in range(2):
        iterator = iter(loader)
        assert loader.position()["sampler_random"] is None
        next(iterator)
        assert loader.position()["sampler_random"] is not None
        assert len(list(iterator)) == SIZE // BATCH - 1


def test_the_hosts_sampler_keeps_its_attributes():
    loader = replayed(sampler=RandomSampler(range(SIZE), num_samples=7))
    assert loader.batch_sampler.sampler.num_samples == 7


@pytest.mark.parametrize(
    "host", [[1, 2], DataLoader(Stream(8), batch_size=2)], ids=["own loader", "stream"]
)
def test_a_loader_without_a_sampler_of_indices_has_no_history(host):
    loader = ReplayedLoader(host)
    before = loader.position()
    next(iterator := iter(loader))
    during = loader.position()
    list(iterator)
    for position in (before, during, loader.position()):
        assert position["iterations"] is None and position["has_workers"] is False


def test_a_pass_begins_where_one_of_the_runs_has_a_generator():
    loaders = replayed(), replayed(generator=torch.Generator())
    for before, after in (loaders, loaders[::-1]):
        assert "resumes with its next pass" in after.seek(before.position(), 1, 1)


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
