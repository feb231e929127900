"""Settings of a pipeline: how windows are decoded and normalised, buffers and threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.order.windows import WindowShape
from robomimic_ddp.data.rlds.schema.fields import Fields

PREFETCHED_BATCHES = 2
"""Batches that a pipeline makes ahead."""


@dataclass(frozen=True)
class WindowSettings:
    """How windows of one dataset are decoded and normalised.

    files: record files; parse: serialized episode -> features; size: height and width of delivered
    images; stored: host camera key -> those of stored images; scale, offset, limit: float32 [A],
    action normalisation and clipping.
    """

    files: tuple[str, ...]
    parse: Callable[[bytes], dict[str, Any]]
    fields: Fields
    shape: WindowShape
    size: tuple[int, int]
    stored: dict[str, tuple[int | None, ...]]
    scale: np.ndarray
    offset: np.ndarray
    limit: np.ndarray


@dataclass(frozen=True)
class Batching:
    """shuffle_buffer: windows, 1 for none; threads: for decoding."""

    batch_size: int
    shuffle_buffer: int
    threads: int
    pin_memory: bool = False

    def for_windows(self, windows: int) -> Batching:
        """Return the same with a shuffle buffer of at most `windows`."""
        return replace(self, shuffle_buffer=max(1, min(self.shuffle_buffer, windows)))
