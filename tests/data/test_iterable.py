"""Streams that were split over ranks before they reach the train loader."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from robomimic_ddp.data.sampling import ReplayedLoader, ShardedLoader, StreamLoader, train_loader
from robomimic_ddp.errors import DataError
from tests.data.host_epochs import Stream


class Part(Stream):
    """A rank's samples of a dataset of 64."""

    def __len__(self):
        return 64


def make(world_size=2, **more):
    kwargs = {"dataset": Part(22), "batch_size": 8, "num_workers": 0, **more.pop("kwargs", {})}
    options = {"rank": 1, "world_size": world_size, "seed": 1, "batch_size_per_rank": 4}
    return train_loader(DataLoader, kwargs, **options, **more)


def test_a_sharded_stream_gives_full_batches_of_the_plans_size():
    loader = make(stream_is_sharded=True)
    assert isinstance(loader, StreamLoader)
    assert [batch.tolist() for batch in loader] == [list(range(i, i + 4)) for i in range(0, 20, 4)]
    assert loader.samples_delivered == 20
    assert len(loader) == 64 // (4 * 2), "steps of a pass over the data of all ranks"
    assert loader.num_workers == 0 and isinstance(loader.dataset, Part)


def test_a_stream_without_batches_is_refused():
    with pytest.raises(DataError, match="batch_size=None"):
        make(stream_is_sharded=True, kwargs={"batch_size": None})


def test_one_rank_gets_the_hosts_own_loader():
    loader = make(world_size=1, stream_is_sharded=True, kwargs={"drop_last": True})
    assert type(loader) is DataLoader and loader.batch_size == 8
    of_no_length = {"dataset": Stream(22), "batch_size": 40, "drop_last": True}
    assert list(make(world_size=1, kwargs=of_no_length)) == []


def test_the_iterator_of_a_shard_is_one_with_the_length_of_a_pass():
    loader = make(stream_is_sharded=False, kwargs={"dataset": range(64)})
    iterator = iter(loader)
    assert iter(iterator) is iterator and len(iterator) == len(list(iterator)) == 8


@pytest.mark.parametrize("kind", [StreamLoader, ShardedLoader, ReplayedLoader])
def test_a_loader_that_is_not_made_yet_has_no_attributes(kind):
    """As when it is unpickled."""
    with pytest.raises(AttributeError, match="loader"):
        kind.__new__(kind).loader  # noqa: B018
