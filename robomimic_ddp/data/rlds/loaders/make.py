"""Make a rank's train or validation loader of a dataset or a mixture."""

from __future__ import annotations

from typing import Any

import numpy as np

from robomimic_ddp.config import machine
from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.loaders.mixture import MixtureTrainLoader, MixtureValidLoader
from robomimic_ddp.data.rlds.loaders.train import RLDSTrainLoader
from robomimic_ddp.data.rlds.loaders.valid import RLDSValidLoader
from robomimic_ddp.data.rlds.mixture_dataset import RLDSMixture
from robomimic_ddp.data.rlds.pipeline.settings import Batching
from robomimic_ddp.data.sampling.sharded_loader import ShardedValidLoader


def make_loader(
    dataset: RLDSDataset | RLDSMixture,
    batch_size: int,
    rank: int,
    world_size: int,
    seed: int,
    cores: int | None = None,
    pin_memory: bool = False,
    device: Any = None,
) -> RLDSTrainLoader | MixtureTrainLoader | ShardedValidLoader:
    """Return the loader of `rank` for the role of `dataset`, "train" or "valid". Not collective.

    batch_size: in windows; seed: equal on all ranks; cores: this rank's (None: a share of the
    machine's); device: for train batches on CUDA. `train.shuffle_buffer_size` is for all ranks
    together. Raises DataError for fewer windows than a step needs.
    """
    cores = cores or max(1, machine.usable_cores() // world_size)
    mixed, trains = isinstance(dataset, RLDSMixture), dataset.role == "train"
    parts, weights = (dataset.datasets, dataset.weights) if mixed else ([dataset], [1.0])
    place = (dataset, batch_size, rank, world_size)

    def batching(part: RLDSDataset, weight: float = 1.0) -> Batching:
        threads = min(part.options.num_parallel_calls or cores, cores)
        buffer = int(part.options.shuffle_buffer_size * weight) // world_size
        # If parts of a batch are moved to a device one by one, each is pinned there.
        pins = pin_memory and not (mixed and trains and device is None)
        return Batching(batch_size, max(1, buffer), max(1, round(threads * weight)), pins)

    def stream(number: int, part: RLDSDataset, weight: float) -> RLDSTrainLoader:
        of_rank = (rank, world_size, batching(part, weight))
        loader = RLDSTrainLoader(part, *of_rank, seed + (number << 32), mixed)
        loader.bring_to(device)
        return loader

    def share(wanted: int) -> RLDSValidLoader | MixtureValidLoader:
        """Return the loader of `wanted` validation windows, spread over the datasets by size."""
        windows = np.diff(ends * wanted // ends[-1]).tolist()
        members = [
            RLDSValidLoader(part, rank, world_size, batching(part), count)
            for part, count in zip(parts, windows)
        ]
        return MixtureValidLoader(*place, members) if mixed else members[0]

    if trains:
        members = [stream(*member) for member in zip(range(len(parts)), parts, weights)]
        return MixtureTrainLoader(*place, members, pin_memory) if mixed else members[0]
    ends = np.cumsum([0, *(part.table.counts.sum() for part in parts)])
    host_batch_size = dataset.options.host_batch_size or batch_size
    return ShardedValidLoader(dataset, int(ends[-1]), host_batch_size, share)
