"""Read TFRecord files, records by byte offset, with their checksums; and write them."""

from __future__ import annotations

import io
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from robomimic_ddp import files
from robomimic_ddp.data.rlds.pipeline.images import RecordError
from robomimic_ddp.data.rlds.schema.fields import Fields
from robomimic_ddp.distributed.atomic_files import atomic_open, must_be_written
from robomimic_ddp.errors import DataError

FRAMING_BYTES = 16
"""TFRecord adds to each record its length (8), a checksum of that (4) and of the data (4)."""
_HEAD_BYTES, _SUM_BYTES = 12, 4
_MASK_DELTA = 0xA282EAD8
Item = TypeVar("Item")
Result = TypeVar("Result")


class ReadError(RecordError):
    """A file could not be read, which says nothing of its records."""


def masked_checksum(data: bytes) -> bytes:
    """Return the CRC-32C of data as TFRecord stores it."""
    import google_crc32c

    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF).to_bytes(_SUM_BYTES, "little")


def read_record(file: Any, offset: int) -> bytes:
    """Return the record at byte `offset`. Raises RecordError for one that is damaged, cut off or
    missing; ReadError for a file that cannot be read.
    """
    try:
        with files.opened(file) as raw, io.BufferedReader(raw) as data:
            data.seek(offset)
            head = data.read(_HEAD_BYTES)
            length = int.from_bytes(head[:8], "little")
            if len(head) < _HEAD_BYTES or masked_checksum(head[:8]) != head[8:]:
                raise RecordError("its length is damaged or cut off")
            left = os.fstat(data.fileno()).st_size - data.tell()
            record, stored = data.read(min(length, left)), data.read(_SUM_BYTES)
    except (OSError, MemoryError) as error:
        kind = RecordError if isinstance(error, FileNotFoundError) else ReadError
        raise kind(f"{file} cannot be read: {error}") from error
    if len(stored) < _SUM_BYTES:
        raise RecordError(f"it is cut off: {len(record)} of {length} bytes are there")
    if masked_checksum(record) != stored:
        raise RecordError("its checksum is wrong")
    return record


def step_features_read(fields: Fields, with_images: bool) -> list[str]:
    """Return the names of the step features that a run reads, with or without images."""
    parts = (*fields.low_dim.values(), *fields.actions.values())
    names = [part.source for part in parts]
    if fields.language:
        names.append(fields.language)
    return sorted({*names, *(fields.images.values() if with_images else ())})


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], pool: ThreadPoolExecutor, most: int
) -> Iterator[Future[Result]]:
    """Yield a future of `function` of each of `items`, in order; `most` are computed ahead."""
    left = iter(items)
    coming = deque(pool.submit(function, item) for item in itertools.islice(left, most))
    while coming:
        yield coming.popleft()
        coming += (pool.submit(function, item) for item in itertools.islice(left, 1))


def offsets_of(file: Path, episodes: int, skip_corrupt: bool) -> list[int]:
    """Return `record_offsets` of a file that has `episodes` by its metadata. Raises DataError for a
    file that cannot be read; unless `skip_corrupt`, for one that is missing or has another number.
    """
    offsets = record_offsets(file, skip_corrupt)
    if not skip_corrupt and len(offsets) != episodes:
        raise DataError(
            f"{file} has {len(offsets)} episodes, its metadata promises {episodes}: cut off, "
            "damaged, or still being written. Copy that file again."
        )
    return offsets


def record_offsets(file: Path, skip_missing: bool = False) -> list[int]:
    """Return the byte offsets of all records of `file`. Raises DataError."""
    return [offset for offset, _ in stored_checksums(file, skip_missing)]


def stored_checksums(file: Path, skip_missing: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the byte offset of each record of `file`, by the lengths in it, and the 4 bytes of the
    checksum that is stored of its data. Reads 12 bytes of a record. Raises DataError for a file
    that cannot be read. skip_missing: a file that is not there has no records.
    """
    try:
        offset, size = 0, file.stat().st_size
        with files.opened(file) as data:
            length = int.from_bytes(data.read(8), "little")
            while length and offset + FRAMING_BYTES <= size:  # no length: space for a copy to come
                end = offset + length + FRAMING_BYTES
                data.seek(min(end, size) - 4)
                framing = data.read(12)
                yield offset, framing[:4]
                offset, length = end, int.from_bytes(framing[4:], "little")
    except OSError as error:
        if skip_missing and isinstance(error, FileNotFoundError):
            return
        raise DataError(f"{file} cannot be read: {error}. Copy that file again.") from error


def rows_of(
    files: Sequence[Path],
    places: Sequence[tuple[int, int]],
    make: Callable[[bytes], tuple],
    threads: int,
    doing: str,
    skip: bool = False,
    remedy: str = "ddp.skip_corrupt=true",
) -> Iterator[tuple]:
    """Yield a row for each of `places`, in order: number of the file, byte offset, bytes of the
    record, and what `make` returns for its serialized episode. `threads` records are read and made
    at once. Raises DataError, which names the damaged episode, and says that reading failed while
    `doing` something, and by which `remedy` such episodes are left out, as with `skip`. A file that
    cannot be read is an error with `skip`, too.
    """

    def row(place: tuple[int, int]) -> tuple:
        number, offset = place
        record = read_record(files[number], offset)
        return number, offset, len(record), *make(record)

    pool = ThreadPoolExecutor(threads, "rlds-records")
    try:
        for (number, offset), future in zip(places, in_order(row, places, pool, 2 * threads)):
            try:
                result = future.result()
            except ReadError as error:
                raise DataError(
                    f"reading failed while {doing}.\n{error}. Its episodes may be undamaged and "
                    f"are not left out, even with {remedy}. Start again once the file can be read; "
                    "if it never can, move it away, which leaves them out."
                ) from error
            except RecordError as error:
                if skip:
                    continue
                raise DataError(
                    f"reading failed while {doing}.\n{files[number]}: the episode at byte {offset} "
                    f"cannot be used ({error}).\nCopy or prepare that file again; training on what "
                    "is left would silently lose episodes. To leave them out and count them: "
                    f"{remedy}."
                ) from error
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def record_writer(target: Path) -> Iterator[Callable[[bytes], Any]]:
    """Yield a function that takes records for the TFRecord file `target`, which appears at
    the end of the block. After an exception it is as before. Raises WriteError.
    """
    with must_be_written(target), atomic_open(target, "wb") as file:

        def put(record: bytes) -> None:
            length = len(record).to_bytes(8, "little")
            for part in (length, masked_checksum(length), record, masked_checksum(record)):
                file.write(part)

        yield put
