"""The order of one pass over a dataset, the same on every rank.

An *order* is a function `draw(pass_number) -> int64 array of dataset indices` over all ranks. It
has the distribution of the host's sampler, drawn from a seed that all ranks share.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from robomimic_ddp.distributed import rng
from robomimic_ddp.errors import CheckpointError, DataError

Order = Callable[[int], np.ndarray]


def order_of(dataset: Any, sampler: Any, shuffle: bool | None, seed: int) -> Order:
    """Return the order for the DataLoader arguments `sampler` and `shuffle`.

    torch's samplers and the host's CustomWeightedRandomSampler are drawn here. Any other sampler is
    iterated once per pass on every rank, with the global random streams seeded from (seed, pass)
    and restored afterwards: all ranks get the same indices if it draws from global or equally
    seeded generators, which `ShardedSampler.order_digest` checks. A stateful sampler reaches a
    later pass by iterating through the passes before. Raises `DataError` for a sampler that already
    splits over ranks, or has no length.
    """
    if sampler is None:
        return _uniform(len(dataset), seed) if shuffle else _sequential(len(dataset))
    if isinstance(sampler, DistributedSampler):
        raise DataError(
            "the DataLoader's sampler is a torch DistributedSampler: it already splits the data "
            "over ranks, and splitting its share again would train on 1/ranks of the data. "
            "Remove it; robomimic-ddp shards the host's own sampler."
        )
    if _only_draws_weights(sampler):
        return _weighted(sampler, seed)
    if type(sampler) is SequentialSampler:
        return _sequential(len(sampler))
    if type(sampler) is RandomSampler and not sampler.replacement:
        if sampler.num_samples == len(sampler.data_source):
            return _uniform(len(sampler.data_source), seed)
    if type(sampler) is SubsetRandomSampler:
        indices = np.asarray(sampler.indices, dtype=np.int64)
        return lambda number: indices[_generator(seed, number).permutation(len(indices))]
    return _iterated(sampler, seed)


def another_order(what: str, sampler: Any) -> CheckpointError:
    """Return the error if a pass cannot be resumed in its middle, since its order has changed."""
    name = "the shuffled dataset" if sampler is None else f"the sampler {type(sampler).__name__}"
    return CheckpointError(
        f"{what} cannot be resumed in its middle: {name} gives another order than when the state "
        "was saved, so some samples would be repeated and others left out. Either train.seed or "
        "the data has changed, or the sampler depends on what a second iteration cannot reproduce "
        "(a clock, weights that changed in training). Resume with the run's own config and data, "
        "derive the sampler's order from train.seed, or begin a new run from these weights "
        "(experiment.ckpt_path)."
    )


def is_stateless(sampler: Any) -> bool:
    """Return whether each iteration of `sampler` depends only on the global random streams."""
    plain = (type(None), SequentialSampler, RandomSampler, SubsetRandomSampler)
    is_known = type(sampler) in plain or _only_draws_weights(sampler)
    return is_known and getattr(sampler, "generator", None) is None


def _only_draws_weights(sampler: Any) -> bool:
    """Return whether the indices are drawn from `weights` only; a subclass may do anything."""
    if not isinstance(sampler, WeightedRandomSampler):
        return False
    own_iteration = type(sampler).__iter__ is not WeightedRandomSampler.__iter__
    return not own_iteration or type(sampler).__name__ == "CustomWeightedRandomSampler"


def _generator(seed: int, number: int) -> np.random.RandomState:
    """Return the generator of pass `number`: RandomState, whose streams never change."""
    entropy = np.random.SeedSequence([seed % 2**64, number])
    return np.random.RandomState(np.random.MT19937(entropy))


def _sequential(size: int) -> Order:
    return lambda number: np.arange(size, dtype=np.int64)


def _uniform(size: int, seed: int) -> Order:
    return lambda number: _generator(seed, number).permutation(size).astype(np.int64)


def _weighted(sampler: WeightedRandomSampler, seed: int) -> Order:
    """Draw by numpy, as the host does: torch.multinomial is limited to 2**24 categories."""

    def draw(number: int) -> np.ndarray:
        # Read per pass: a host may change its weights while training.
        weights = np.asarray(sampler.weights, dtype=np.float64)
        total = weights.sum()
        if not (np.isfinite(total) and total > 0 and weights.min() >= 0):
            raise DataError(
                f"the sampling weights sum to {total} with minimum {weights.min()}; they must "
                "be finite, not negative, not all zero. Check the weights in train.data."
            )
        drawn = _generator(seed, number).choice(
            len(weights), size=sampler.num_samples, replace=sampler.replacement, p=weights / total
        )
        return drawn.astype(np.int64)

    return draw


def _iterated(sampler: Any, seed: int) -> Order:
    name = type(sampler).__name__
    if not hasattr(sampler, "__len__"):
        raise DataError(
            f"the DataLoader's sampler ({name}) has no length: on several ranks the number of "
            "batches must be known, or one rank would wait for a batch that another does not have. "
            "Give it a __len__, or use a torch sampler."
        )

    last = -1, np.empty(0, dtype=np.int64)
    """The newest pass of the sampler, and its indices."""

    def draw(number: int) -> np.ndarray:
        nonlocal last
        if number < last[0]:  # a stateless sampler; for others the digest differs
            last = number, iterated(number)
        while last[0] < number:  # as in an uninterrupted run
            last = last[0] + 1, iterated(last[0] + 1)
        return last[1]

    def iterated(number: int) -> np.ndarray:
        word = int(_generator(seed, number).randint(2**31))
        with rng.kept():
            random.seed(word)
            np.random.seed(word)
            torch.manual_seed(word)
            indices = np.fromiter((int(index) for index in sampler), dtype=np.int64)
        if len(indices) != len(sampler):
            raise DataError(
                f"the DataLoader's sampler ({name}) has the length {len(sampler)} but gave "
                f"{len(indices)} indices: the ranks would not agree on the number of batches. "
                "Make its length the number of indices."
            )
        return indices

    return draw
