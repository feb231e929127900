"""Which episodes are used, and which of them for validation: pure functions of the index."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.index.statistics import Index
from robomimic_ddp.errors import DataError


def select_episodes(
    index: Index,
    window_counts: np.ndarray,
    success_only: bool,
    skip_unlabeled: bool,
    where: str,
    filters: Sequence[Any] = (),
    success: Any = "success",
) -> tuple[np.ndarray, str]:
    """Return the rows of `index` that pass the filters and have at least one window, int64 [K], in
    order, and how many others are left out for which reasons, in words. Raises DataError. filters,
    success: the schema's, for the words.
    """
    reasons = {
        f"without success ({success}; train.success_only)": ~index.success & success_only,
        "no language instruction (train.skip_unlabeled)": ~index.labelled & skip_unlabeled,
        **{
            f"not {condition} (the schema's filter)": ~index.passed[:, number]
            for number, condition in enumerate(filters)
        },
        "too short for one window (train.seq_length and its padding)": window_counts < 1,
    }
    dropped = np.zeros(len(index.length), bool)
    for mask in reasons.values():
        dropped |= mask
    rows = np.flatnonzero(~dropped)
    counts = "; ".join(
        f"{int(mask.sum())}: {reason}" for reason, mask in reasons.items() if mask.any()
    )
    if len(rows) == 0:
        raise DataError(
            f"none of the {len(index.length)} episodes of {where} passes the filters. Dropped "
            f"{counts}. Switch off the filter that does not fit this dataset."
        )
    return rows, counts


def episode_hash(file: int, number: int) -> int:
    """Return a hash of the episode `number` of file `file`, whatever else is in the dataset."""
    return int.from_bytes(
        hashlib.blake2b(f"{file}/{number}".encode(), digest_size=8).digest(), "big"
    )


def split_validation(
    index: Index,
    rows: np.ndarray,
    fraction: float,
    where: str,
    per_file: Sequence[int],
    numbers: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Split `rows` into those for training and for validation, at least one each. Validation has
    the episodes with the smallest hashes, the `fraction` of all `per_file` episodes before filters:
    an episode's split depends on neither world size, filters, nor damaged episodes. numbers: each
    row's number in its file. Raises DataError for a single episode.
    """
    if len(rows) < 2:
        raise DataError(
            f"{where} has {len(rows)} episode left after the filters: training and validation need "
            "one each. Set experiment.validate=false or add episodes."
        )
    every = [episode_hash(file, n) for file, count in enumerate(per_file) for n in range(count)]
    everything = np.sort(np.array(every, np.uint64))
    count = min(max(1, round(fraction * len(everything))), len(everything) - 1)
    places = zip(index.file[rows].tolist(), numbers[rows].tolist())
    hashes = np.array([episode_hash(file, number) for file, number in places], np.uint64)
    chosen = hashes <= everything[count - 1]
    chosen[hashes.argmin()], chosen[hashes.argmax()] = True, False
    return rows[~chosen], rows[chosen]
