"""Write TFRecord files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robomimic_ddp.data.rlds.index.records import masked_checksum
from robomimic_ddp.distributed.atomic_files import atomic_open, must_be_written


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
