"""The next batch is read and pinned in a thread while the present one trains.

On the CPU there is nothing to copy: batches stay in TensorFlow's memory, and this is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Callable

import torch

from robomimic_ddp.config import tree

MOVED = ("obs", "actions", "pad_mask")
"""Entries of a batch that training reads on the device; `index` and `language` are for people."""


class Ahead:
    """Reads, in one thread, the batch after the one that it hands out.

    convert: a raw batch -> the batch, called in the thread, which works on the CUDA `device`: a new
    thread's is the first one, where pinning memory would open a context for every rank. What
    reading raises is raised where the batch is asked for.
    """

    def __init__(self, convert: Callable[[Any], Any], device: torch.device | None = None) -> None:
        self._convert = convert
        bind = None if device is None else partial(torch.cuda.set_device, device)
        # Not a daemon: Python waits for its last batch at exit, and TensorFlow's C++ is left whole.
        self._pool = ThreadPoolExecutor(1, "rlds-ahead", initializer=bind)
        self._batches: Iterator[Any] | None = None
        self._coming: Future | None = None

    def next_of(self, batches: Iterator[Any]) -> Any:
        """The next of `batches`; of another iterator than before, it begins anew."""
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
    """`batch` with what training reads on `device`; a copy from pinned memory is not waited for."""
    return {
        key: tree.mapped(lambda tensor: tensor.to(device, non_blocking=True), value)
        if key in MOVED
        else value
        for key, value in batch.items()
    }
