"""Read and pin the next batch in a thread, while the current one trains. For CUDA only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from robomimic_ddp.config import tree

MOVED = ("obs", "actions", "pad_mask")
"""Entries of a batch that are moved to the device: all but `index` and `language`."""


class Prefetcher:
    """Reads one batch ahead, in a thread. Errors are raised by `next_of`. convert: a raw batch ->
    the batch, with `device` as the thread's CUDA device: pinning on the default would open a
    context.
    """

    def __init__(self, convert: Callable[[Any], Any], device: torch.device | None = None) -> None:
        self._convert = convert
        bind = None if device is None else partial(torch.cuda.set_device, device)
        self._pool = ThreadPoolExecutor(1, "rlds-ahead", initializer=bind)
        self._batches: Iterator[Any] | None = None
        self._coming: Future | None = None

    def next_of(self, batches: Iterator[Any]) -> Any:
        """Return the next of `batches`. Another iterator than before drops the prefetched batch."""
        if batches is not self._batches or self._coming is None:
            self._begin(batches)
        coming, self._coming = self._coming, None
        batch = coming.result()
        self._begin(batches)
        return batch

    def _begin(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._coming = self._pool.submit(lambda: self._convert(next(batches)))


def moved(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return `batch` on `device`, copied with non_blocking, without `index` and `language`."""
    return {
        key: tree.mapped(lambda tensor: tensor.to(device, non_blocking=True), value)
        if key in MOVED
        else value
        for key, value in batch.items()
    }
