"""Make the train and validation loaders from the host's DataLoader arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch.utils.data import IterableDataset

from robomimic_ddp.data.sampling.nested_loaders import StreamLoader
from robomimic_ddp.data.sampling.pass_order import Order, order_of
from robomimic_ddp.data.sampling.sampler import ShardedSampler
from robomimic_ddp.data.sampling.sharded_loader import ShardedLoader, ShardedValidLoader
from robomimic_ddp.errors import DataError


def train_loader(
    make_loader: Callable[..., Any],
    kwargs: dict[str, Any],
    *,
    rank: int,
    world_size: int,
    seed: int,
    batch_size_per_rank: int,
    stream_is_sharded: bool = False,
) -> Any:
    """Return the training loader for the DataLoader arguments `kwargs` of the host; on one rank the
    host's.

    On several, each rank gets full batches of `batch_size_per_rank` from its shard of every pass,
    equally many. `seed`: equal on all ranks. `stream_is_sharded`: of an IterableDataset. Raises
    DataError for fewer samples than one global batch, and for what cannot be split.
    """
    if world_size == 1:
        _require_one_batch(kwargs, "training")
        return make_loader(**kwargs)
    if stream_is_sharded and isinstance(kwargs["dataset"], IterableDataset):
        _require_plain_batches(kwargs)
        stream_kwargs = {**kwargs, "batch_size": batch_size_per_rank, "drop_last": True}
        return StreamLoader(make_loader(**stream_kwargs), world_size)
    order, size = _order_and_size(kwargs, seed)
    global_batch = batch_size_per_rank * world_size
    if size < global_batch:
        raise DataError(
            f"the training set has {size} samples, but a step needs {global_batch} "
            f"({world_size} ranks x {batch_size_per_rank}): no rank could take a single step. Use "
            "a smaller train.batch_size, fewer ranks, or more data."
        ).on_all_ranks()
    sampler = ShardedSampler(order, size, rank=rank, world_size=world_size, drop_last=True)
    return ShardedLoader(
        make_loader, kwargs, sampler, batch_size_per_rank, drop_last=True, seed=seed
    )


def valid_loader(
    make_loader: Callable[..., Any],
    kwargs: dict[str, Any],
    *,
    rank: int,
    world_size: int,
    seed: int,
    batch_size_per_rank: int,
) -> Any:
    """Return the same as `train_loader`, for validation: every sample once over all ranks, in
    batches of at most `batch_size_per_rank` (a `ShardedValidLoader`); the dataset may be small.
    """
    if world_size == 1:
        _require_one_batch(kwargs, "validation")
        return make_loader(**kwargs)
    order, size = _order_and_size(kwargs, seed)
    # Pass 0 at every epoch: losses are comparable.
    order = lru_cache(maxsize=1)(order)

    def of_first(total: int) -> ShardedLoader:
        places = {"rank": rank, "world_size": world_size}
        sampler = ShardedSampler(lambda _: order(0)[:total], total, **places, drop_last=False)
        return ShardedLoader(make_loader, kwargs, sampler, batch_size_per_rank, drop_last=False)

    batch = int(kwargs.get("batch_size", 1))
    return ShardedValidLoader(kwargs["dataset"], size, batch, of_first)


def _require_one_batch(kwargs: dict[str, Any], role: str) -> None:
    """Raise DataError if, on one rank with drop_last, there is no full batch."""
    batch, dataset = kwargs.get("batch_size", 1), kwargs["dataset"]
    if not kwargs.get("drop_last") or isinstance(dataset, IterableDataset) or not batch:
        return
    sampler = kwargs.get("sampler")
    size = int(len(dataset) if sampler is None else len(sampler))
    if size < batch:
        raise DataError(
            f"the {role} set has {size} samples, but a batch takes {batch} "
            "(train.batch_size), and the host drops batches that are not full: there would be "
            "none. Use a smaller batch, or more data."
        )


def _order_and_size(kwargs: dict[str, Any], seed: int) -> tuple[Order, int]:
    """Return the order of the host's loader and its number of samples per pass, over all ranks."""
    dataset, sampler = kwargs["dataset"], kwargs.get("sampler")
    if isinstance(dataset, IterableDataset):
        raise DataError(
            f"the DataLoader's dataset ({type(dataset).__name__}) is an IterableDataset: on "
            "several ranks each would read all of it, since only the dataset itself can split its "
            "stream. Use train.data_format=droid_rlds for RLDS data, or a dataset with "
            "__getitem__; a tensorflow-datasets pipeline of the host's own is split where it is "
            "made, by DDPUtils.sharded(make_dataset)(...)."
        )
    _require_plain_batches(kwargs)
    order = order_of(dataset, sampler, kwargs.get("shuffle"), seed)
    return order, int(len(dataset) if sampler is None else len(sampler))


def _require_plain_batches(kwargs: dict[str, Any]) -> None:
    if kwargs.get("batch_sampler") is not None:
        raise DataError(
            f"the DataLoader has a batch_sampler ({type(kwargs['batch_sampler']).__name__}), whose "
            "batches cannot be split evenly over ranks. Pass batch_size and sampler instead."
        )
    if kwargs.get("batch_size", 1) is None:
        raise DataError(
            "the DataLoader has batch_size=None (batching switched off), so the samples of a step "
            "cannot be split over ranks. Pass a batch_size."
        )
