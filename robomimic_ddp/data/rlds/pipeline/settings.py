"""Settings of a pipeline: how windows are decoded and normalised, buffers and threads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable

import numpy as np

from robomimic_ddp.data.rlds.order.windows import WindowShape
from robomimic_ddp.data.rlds.pipeline.images import PictureSize
from robomimic_ddp.data.rlds.schema.fields import Fields

PREFETCHED_BATCHES = 2


@dataclass(frozen=True)
class WindowSettings:
    """How windows of one dataset are decoded and normalised.

    files: record files; parse: see `records.episode_parser`; stored: host camera key -> (height,
    width) of stored images; scale, offset, limit: float32 [A], action normalisation and clipping;
    skip_corrupt: replace windows that cannot be read; reduced: host camera key -> the scale at
    which images are decoded, if it is not 1.
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
class Batching:
    """shuffle_buffer: windows, 1 for none; threads: for decoding; prefetch: batches."""

    batch_size: int
    shuffle_buffer: int
    threads: int
    prefetch: int = PREFETCHED_BATCHES
    pin_memory: bool = False

    def for_windows(self, windows: int) -> Batching:
        """The same with a shuffle buffer of at most `windows`."""
        return replace(self, shuffle_buffer=max(1, min(self.shuffle_buffer, windows)))
