"""What a host may leave out of a DataLoader's arguments, or give in an unusual form."""

from __future__ import annotations

from torch.utils.data import DataLoader, SubsetRandomSampler

from robomimic_ddp.data.sampling import train_loader, valid_loader
from tests.data.host_epochs import Samples, indices

TWO = {"rank": 1, "world_size": 2, "seed": 3}


def test_a_host_without_a_batch_size_has_torchs_batches_of_one():
    kwargs = {"dataset": Samples(6)}
    train = train_loader(DataLoader, kwargs, **TWO, batch_size_per_rank=1)
    assert indices(train) == [[1], [3], [5]]
    valid = valid_loader(DataLoader, kwargs, **TWO, batch_size_per_rank=1)
    assert indices(valid.limited(4)) == [[1], [3]]
    assert valid.dataset is kwargs["dataset"] and len(valid) == 3


def test_a_sampler_may_take_less_than_the_data_set():
    sampler = SubsetRandomSampler([4, 7, 9, 11])
    kwargs = {"dataset": Samples(20), "sampler": sampler, "batch_sampler": None}
    ranks = [
        train_loader(DataLoader, kwargs, **{**TWO, "rank": rank}, batch_size_per_rank=2)
        for rank in range(2)
    ]
    assert sorted(sum((batch for rank in ranks for batch in indices(rank)), [])) == [4, 7, 9, 11]
