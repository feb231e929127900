"""The next batch on its way to the device while the present one trains.

On the CPU there is nothing to move: batches lie in TensorFlow's memory, and none of this is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable

import torch

MOVED = ("obs", "actions", "pad_mask")
"""Entries of a batch that training reads on the device; `index` and `language` are for people."""


class Ahead:
    """Reads, in one thread, the batch after the one that it hands out.

    send: a raw batch -> what `receive` needs, called in the thread; receive: that -> the batch,
    called by who asks. What reading raises is raised where the batch is asked for.
    """

    def __init__(self, send: Callable[[Any], Any], receive: Callable[[Any], Any]) -> None:
        self._send, self._receive = send, receive
        # Not a daemon: Python waits for its last batch at exit, and TensorFlow's C++ is left whole.
        self._pool = ThreadPoolExecutor(1, "rlds-ahead")
        self._batches: Iterator[Any] | None = None
        self._coming: Future | None = None

    def next_of(self, batches: Iterator[Any]) -> Any:
        """The next of `batches`; of another iterator than before, it begins anew."""
        if batches is not self._batches or self._coming is None:
            self._begin(batches)
        coming, self._coming = self._coming, None
        sent = coming.result()
        self._begin(batches)
        return self._receive(sent)

    def _begin(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._coming = self._pool.submit(lambda: self._send(next(batches)))


class CudaCopies:
    """Copies to the CUDA `device` on a stream of their own, out of what `to_torch` gives:
    only where that is pinned is nobody held up.
    """

    def __init__(self, device: torch.device, to_torch: Callable[[Any], dict[str, Any]]) -> None:
        self.device, self._to_torch = device, to_torch
        self._stream = torch.cuda.Stream(device)

    def send(self, raw: Any) -> tuple[dict[str, Any], Any]:
        """Starts the copies; returns the batch and what tells their end."""
        return self._started(self._to_torch(raw))

    def moved(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch of tensors on the CPU, on the device: of `send` and `receive` at once."""
        return self.receive(self._started(batch))

    def _started(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        with torch.cuda.stream(self._stream):
            for key in MOVED:
                batch[key] = _each(batch[key], self._copied)
            return batch, self._stream.record_event()

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)

    def receive(self, sent: tuple[dict[str, Any], Any]) -> dict[str, Any]:
        """The batch, for the present stream: its work waits for the copies, the host does not."""
        batch, copied = sent
        current = torch.cuda.current_stream(self.device)
        current.wait_event(copied)
        for key in MOVED:
            # The memory belongs to the other stream, which must not reuse it before this one is
            # done.
            _each(batch[key], lambda tensor: tensor.record_stream(current))
        return batch


def _each(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _each(item, function) for key, item in value.items()}
    return function(value)
