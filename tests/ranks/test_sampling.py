"""Real DataLoaders on real ranks, with and without worker processes."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from robomimic_ddp.data.sampling import train_loader, valid_loader
from robomimic_ddp.distributed import group

SIZE = 47


class Samples(Dataset):
    """Sample i with a little noise from the worker's stream, as an augmentation would add."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return {"index": index, "noise": torch.rand(()), "worker": get_worker_info() is not None}


def run_passes(make, num_workers, kwargs, passes=2):
    torch.manual_seed(100 + group.rank())
    persistent = num_workers > 0
    loader = make(
        DataLoader,
        {
            "dataset": Samples(),
            "batch_size": 4,
            "num_workers": num_workers,
            "persistent_workers": persistent,
            **kwargs,
        },
        rank=group.rank(),
        world_size=group.world_size(),
        seed=1,
        batch_size_per_rank=4,
    )
    seen = [list(loader) for _ in range(passes)]
    assert all(batch["worker"].all() == persistent for batches in seen for batch in batches)
    indices = [[batch["index"].tolist() for batch in batches] for batches in seen]
    noise = [value for batch in seen[0] for value in batch["noise"].tolist()]
    digests = loader.index_stream_digest()
    return indices, noise, digests, loader.samples_delivered


def flat(batches):
    return [index for batch in batches for index in batch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_passes_are_disjoint_full_and_reshuffled(own_ranks, num_workers):
    results = own_ranks.run(run_passes, train_loader, num_workers, {"shuffle": True})
    (first, noise0, digest0, count0), (second, noise1, digest1, count1) = results
    for number in range(2):
        assert [len(batch) for batch in first[number] + second[number]] == [4] * 10
        union = flat(first[number]) + flat(second[number])
        assert len(set(union)) == 40
    assert first[0] != first[1] and second[0] != second[1]
    assert not set(noise0) & set(noise1)
    assert digest0 != digest1
    assert (count0, count1) == (40, 40)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_validation_sample_comes_once(own_ranks, num_workers):
    results = own_ranks.run(run_passes, valid_loader, num_workers, {"shuffle": True})
    for number in range(2):
        union = [index for result in results for index in flat(result[0][number])]
        assert sorted(union) == list(range(SIZE))
    assert results[0][0][0] == results[0][0][1]  # the same order at every epoch
    assert [result[3] for result in results] == [48, 46]
