"""Real DataLoaders on real ranks, with and without worker processes."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from robomimic_ddp.data.sampling import train_loader
from robomimic_ddp.distributed import group

SIZE = 47


class Samples(Dataset):
    """Sample i with a little noise from the worker's stream, as an augmentation would add."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return {"index": index, "noise": torch.rand(()), "worker": get_worker_info() is not None}


def run_passes(num_workers):
    """Collective: (indices, noise of the first pass, digests, samples) of two passes of a rank."""
    torch.manual_seed(100 + group.rank())
    kwargs = {"dataset": Samples(), "batch_size": 4, "shuffle": True, "num_workers": num_workers}
    loader = train_loader(
        DataLoader,
        {**kwargs, "persistent_workers": num_workers > 0},
        rank=group.rank(),
        world_size=group.world_size(),
        seed=1,
        batch_size_per_rank=4,
    )
    passes = [list(loader) for _ in range(2)]
    for batch in (batch for batches in passes for batch in batches):
        assert batch["worker"].all() == (num_workers > 0)
    indices = [[batch["index"].tolist() for batch in batches] for batches in passes]
    noise = [value for batch in passes[0] for value in batch["noise"].tolist()]
    return indices, noise, loader.index_stream_digest(), loader.samples_delivered


def flat(batches):
    return [index for batch in batches for index in batch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_passes_are_disjoint_full_and_reshuffled(own_ranks, num_workers):
    results = own_ranks.run(run_passes, num_workers)
    (first, noise0, digest0, count0), (second, noise1, digest1, count1) = results
    for number in range(2):
        assert [len(batch) for batch in first[number] + second[number]] == [4] * 10
        union = flat(first[number]) + flat(second[number])
        assert len(set(union)) == 40
    assert first[0] != first[1] and second[0] != second[1]
    assert not set(noise0) & set(noise1)
    assert digest0 != digest1
    assert (count0, count1) == (40, 40)
