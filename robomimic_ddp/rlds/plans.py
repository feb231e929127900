"""What a pipeline is told: which records, how they become batches, and with which buffers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any, Callable

import numpy as np

from robomimic_ddp.env import share_of_cores
from robomimic_ddp.rlds.pictures import PictureSize
from robomimic_ddp.rlds.schema import Fields
from robomimic_ddp.rlds.windows import WindowShape

PREFETCHED_BATCHES = 2


@dataclass(frozen=True)
class PassPlan:
    """What one rank reads in one pass, in reading order; int64 [P] each but the seed.

    file, offset: where the record lies; start, stop: which of the episode's `taken` windows of this
    pass; count: all its windows; pick: see `windows.picked_windows`; base: the data set's number of
    its window 0.
    """

    file: np.ndarray
    offset: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    taken: np.ndarray
    count: np.ndarray
    pick: np.ndarray
    base: np.ndarray
    shuffle_seed: int

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The eight arrays and the seed, as tf.data takes them."""
        *rows, seed = (getattr(self, field.name) for field in fields(self))
        return (*(np.asarray(row, np.int64) for row in rows), np.int64(seed))

    def digest(self) -> str:
        """Hex digest of which windows are read, in which order."""
        digest = hashlib.blake2b(digest_size=16)
        for array in self.arrays():
            digest.update(array.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Recipe:
    """How windows of one data set are made into batches.

    files: record files; parse: see `records.episode_parser`; scale, offset, limit: float32 [A]
    action normalisation and clipping; stored: host camera key -> (height, width) of the stored
    pictures.
    """

    files: tuple[str, ...]
    parse: Callable[[Any], dict[str, Any]]
    fields: Fields
    shape: WindowShape
    size: PictureSize
    stored: dict[str, tuple[int | None, ...]]
    scale: np.ndarray
    offset: np.ndarray
    limit: np.ndarray


@dataclass(frozen=True)
class Reading:
    """Batches of `batch_size` windows, a shuffle buffer of so many windows (0: none), so many
    decoding threads, so many batches made ahead; `pin_memory` for copies to a CUDA device.
    """

    batch_size: int
    shuffle_buffer: int
    threads: int
    prefetch: int = PREFETCHED_BATCHES
    pin_memory: bool = False

    def for_windows(self, windows: int) -> Reading:
        """The same with a shuffle buffer that holds at most `windows`."""
        return replace(self, shuffle_buffer=min(self.shuffle_buffer, windows))


def decoding_threads(wanted: int | None, ranks_on_node: int) -> int:
    """Threads of one rank: its share of the node's cores, or `wanted` where that is less."""
    share = share_of_cores(ranks_on_node)
    return min(wanted, share) if wanted else share
