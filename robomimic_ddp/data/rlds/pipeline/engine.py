"""Read records, keep their windows in the shuffle buffer, and make batches in the planned order.

`read_plan.PassPlan` plans the order in which windows leave the buffer, so any position can be
reached directly. Frames stay encoded until their batch is made, so none is decoded that is not
delivered. The plan is followed by the caller's thread; records are read and frames decoded by a
pool, meanwhile and without Python's lock.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from robomimic_ddp.data.rlds.index.records import in_order, read_record
from robomimic_ddp.data.rlds.order.read_plan import PassPlan
from robomimic_ddp.data.rlds.pipeline.images import RecordError
from robomimic_ddp.data.rlds.pipeline.resize import compiled_filter
from robomimic_ddp.data.rlds.pipeline.settings import PREFETCHED_BATCHES, Batching, WindowSettings
from robomimic_ddp.data.rlds.pipeline.shared import Memory, Pool
from robomimic_ddp.data.rlds.pipeline.window_batches import Batch, Window, windows_of

READERS = 8
"""Most records that are read at once."""
_FRAMES_AT_ONCE = 8
"""Frames that a thread decodes before it looks for other work."""


class FrameCounters:
    """Camera frames, in `memory` of BYTES: `decoded` one by one, `batched` with their batch."""

    BYTES = 16

    def __init__(self, memory: Any) -> None:
        self._frames = np.ndarray((2,), np.int64, memory)
        self._lock = threading.Lock()

    @property
    def decoded(self) -> int:
        """Frames that were decoded."""
        return int(self._frames[0])

    @property
    def batched(self) -> int:
        """Frames of complete batches."""
        return int(self._frames[1])

    def count(self, batch: Batch, decoded: int) -> None:
        """Count `decoded` frames of `batch`, and its frames with the last of them."""
        with self._lock:
            self._frames[0] += decoded
            batch.missing -= decoded
            self._frames[1] += 0 if batch.missing else batch.frames


class _Record(NamedTuple):
    """A record to read: its row of `Block.records`, the windows to keep, their keys, and those that
    leave once they are there: [key, number in the dataset].
    """

    record: list[int]
    numbers: np.ndarray
    keys: list[int]
    leaving: list[list[int]]


class Batches:
    """An iterator over the batches of the plans of parts 0, 1, ... (`parts`: their number; None:
    endless). Batches may extend over the ends of parts; the last one may be short.

    start: a part, and how many windows of it were delivered; of earlier records only those with
    waiting windows are read. `sizes()`: the windows of each batch, in place of `batch_size`.

    Raises RecordError where the batch would come; ends there.
    """

    def __init__(
        self,
        settings: WindowSettings,
        plan_of: Callable[[int], PassPlan],
        parts: int | None,
        batching: Batching,
        start: tuple[int, int],
        sizes: Callable[[], Iterator[int]] | None,
        counters: FrameCounters,
        pool: Pool,
    ) -> None:
        compiled_filter()  # compiled once, before threads would do so
        self._settings, self._batching = settings, batching
        self._counters, self._memory = counters, pool
        self._store: dict[int, Window] = {}
        self._pool = ThreadPoolExecutor(batching.threads, "rlds-decode")
        self._planner = ThreadPoolExecutor(1, "rlds-plan")
        records = _records(plan_of, start, parts)
        self._leaving = self._read(itertools.chain.from_iterable(_ahead(records, self._planner)))
        self._sizes = itertools.repeat(batching.batch_size) if sizes is None else sizes()
        self._coming: deque[tuple[Callable[[], Batch], Memory | None]] = deque()
        self._ended = False

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        if not self._coming:
            self.fill()
        if not self._coming:
            raise StopIteration
        finish, _ = self._coming.popleft()
        return finish()

    def fill(self) -> None:
        """Begin batches until PREFETCHED_BATCHES are being made: to call after `next`, which does
        not wait for it.
        """
        while not self._ended and len(self._coming) < PREFETCHED_BATCHES:
            try:
                self._begin()
            # Raised where that batch is asked for, after those before it.
            except Exception as error:
                self._ended = True
                self._coming.append((partial(_failed, error), None))

    def close(self) -> None:
        """Wait for what is being read and decoded, and free the buffer."""
        self._ended = True
        unused = [memory for _, memory in self._coming if memory is not None]
        self._coming.clear()
        for pool in (self._planner, self._pool):
            pool.shutdown(wait=True, cancel_futures=True)
        for memory in unused:  # the rank has mapped it: new memory each time would fill the machine
            self._memory.put_back(memory)
        self._store.clear()

    def _begin(self) -> None:
        """Take a batch's windows out of the buffer, and have its frames decoded."""
        first = next(self._leaving, None)
        if first is None:
            self._ended = True
            return
        rows = [first, *itertools.islice(self._leaving, next(self._sizes) - 1)]
        keys, index = zip(*rows)
        windows = [self._store.pop(key) for key in keys]
        batch = Batch(self._settings, windows, index, self._memory)
        starts = range(0, batch.frames, _FRAMES_AT_ONCE)
        futures = [self._pool.submit(self._decode, batch, start) for start in starts]
        self._coming.append((partial(_finished, batch, futures), batch.memory))

    def _decode(self, batch: Batch, first: int) -> None:
        self._counters.count(batch, batch.decode(first, first + _FRAMES_AT_ONCE))

    def _read(self, records: Iterator[_Record]) -> Iterator[list[int]]:
        """Yield `_Record.leaving` of the windows that leave, once they are in the buffer."""
        files, most = self._settings.files, min(self._batching.threads, READERS)

        def read(record: _Record) -> tuple[_Record, list[Window]]:
            file, offset, *_, first_window = record.record
            try:
                data = read_record(files[file], offset)
                return record, windows_of(self._settings, data, record.record, record.numbers)
            except RecordError as error:
                error.window = first_window
                raise

        for future in in_order(read, records, self._pool, most + 1):
            record, windows = future.result()
            self._store.update(zip(record.keys, windows))
            yield from record.leaving


def _records(
    plan_of: Callable[[int], PassPlan], start: tuple[int, int], parts: int | None
) -> Iterator[list[_Record]]:
    """Yield the records of each block of the plans."""
    first, delivered = start
    for part in itertools.count(first) if parts is None else range(first, parts):
        plan = plan_of(part)
        resumed = part == first and delivered > 0
        begin = plan.block_of(delivered) if resumed else 0
        for number in range(begin, plan.blocks):
            block = plan.block(number, delivered if resumed and number == begin else 0)
            leaving = block.leaving.tolist()
            keys, stored, left = block.keys.tolist(), block.stored.tolist(), block.left.tolist()
            yield [
                _Record(
                    record,
                    block.numbers[stored[row] : stored[row + 1]],
                    keys[stored[row] : stored[row + 1]],
                    leaving[left[row] : left[row + 1]],
                )
                for row, record in enumerate(block.records.tolist())
            ]


def _ahead(items: Iterator[Any], pool: ThreadPoolExecutor) -> Iterator[Any]:
    """Yield `items`, of which the next one is computed meanwhile."""
    coming = pool.submit(next, items, None)
    while (item := coming.result()) is not None:
        coming = pool.submit(next, items, None)
        yield item


def _finished(batch: Batch, futures: list[Future]) -> Batch:
    for future in futures:
        future.result()
    return batch


def _failed(error: Exception) -> Batch:
    raise error
