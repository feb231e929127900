"""Make a rank's train or validation loader of a dataset or a mixture."""

from __future__ import annotations

from typing import Any

from robomimic_ddp.config import machine
from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.loaders.mixture import MixtureTrainLoader, MixtureValidLoader
from robomimic_ddp.data.rlds.loaders.train import RLDSTrainLoader
from robomimic_ddp.data.rlds.loaders.valid import RLDSValidLoader
from robomimic_ddp.data.rlds.mixture_dataset import RLDSMixture
from robomimic_ddp.data.rlds.pipeline.settings import Batching


def make_loader(
    dataset: RLDSDataset | RLDSMixture,
    batch_size: int,
    rank: int,
    world_size: int,
    seed: int,
    cores: int | None = None,
    pin_memory: bool = False,
    device: Any = None,
) -> RLDSTrainLoader | RLDSValidLoader | MixtureTrainLoader | MixtureValidLoader:
    """Return the loader of `rank` for the role of `dataset`, "train" or "valid". Not collective.

    batch_size: in windows; seed: equal on all ranks; cores: this rank's (None: a share of the
    machine's); device: for train batches on CUDA. `train.shuffle_buffer_size` is for all ranks
    together. Raises DataError for fewer windows than a step needs.
    """
    cores = cores or max(1, machine.usable_cores() // world_size)
    mixed, trains = isinstance(dataset, RLDSMixture), dataset.role == "train"

    def reader(part: RLDSDataset, weight: float = 1.0, number: int = 0) -> Any:
        threads = min(part.options.num_parallel_calls or cores, cores)
        buffer = int(part.options.shuffle_buffer_size * weight) // world_size
        # If parts of a batch are moved to a device one by one, each is pinned there.
        pins = pin_memory and not (mixed and trains and device is None)
        batching = Batching(batch_size, max(1, buffer), max(1, round(threads * weight)), pins)
        if not trains:
            return RLDSValidLoader(part, rank, world_size, batching)
        loader = RLDSTrainLoader(part, rank, world_size, batching, seed + (number << 32), mixed)
        loader.bring_to(device)
        return loader

    if not isinstance(dataset, RLDSMixture):
        return reader(dataset)
    place = (dataset, batch_size, rank, world_size)
    if not trains:
        return MixtureValidLoader(*place, [reader(part) for part in dataset.datasets])
    parts = zip(dataset.datasets, dataset.weights)
    members = [reader(part, weight, number) for number, (part, weight) in enumerate(parts)]
    return MixtureTrainLoader(*place, members, pin_memory)
