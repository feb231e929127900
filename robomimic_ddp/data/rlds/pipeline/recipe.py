"""How a pipeline makes batches: what it does to windows, and with which buffers and threads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable

import numpy as np

from robomimic_ddp.data.rlds.order.windows import WindowShape
from robomimic_ddp.data.rlds.pipeline.images import PictureSize
from robomimic_ddp.data.rlds.schema.fields import Fields

PREFETCHED_BATCHES = 2


@dataclass(frozen=True)
class Recipe:
    """How windows of one data set are made into batches.

    files: record files; parse: see `records.episode_parser`; scale, offset, limit: float32 [A]
    action normalisation and clipping; stored: host camera key -> (height, width) of the stored
    pictures; skip_corrupt: windows that cannot be read are replaced, by the module of that
    name; reduced: host camera key -> the scale at which pictures are decoded, where it is not 1.
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
    skip_corrupt: bool = False
    reduced: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """Batches of `batch_size` windows, a shuffle buffer of so many windows (1: none), so many
    decoding threads, so many batches made ahead; `pin_memory` for copies to a CUDA device.
    """

    batch_size: int
    shuffle_buffer: int
    threads: int
    prefetch: int = PREFETCHED_BATCHES
    pin_memory: bool = False

    def for_windows(self, windows: int) -> Reading:
        """The same with a shuffle buffer that holds at most `windows`."""
        return replace(self, shuffle_buffer=max(1, min(self.shuffle_buffer, windows)))
