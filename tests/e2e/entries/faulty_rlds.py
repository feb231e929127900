"""Runs the dot-list entry on RLDS data; at its third batch something happens to rank 1.

    torchrun ... -m tests.e2e.entries.faulty_rlds FAULT load_from=cfg.json key=value ...

FAULT: a name of FAULTS.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import robomimic.scripts.train_rlds as entry

from robomimic_ddp.data.rlds.index.records import masked_checksum, read_record, record_offsets
from robomimic_ddp.data.rlds.loaders import base
from robomimic_ddp.data.rlds.loaders.remote import reader_of_rank
from tests.e2e.entries.watched_train import RANK, around

HEAD_BYTES = 12
"""Of a record: its length and the checksum of that."""


def kill(loader: Any) -> None:
    """End the process that reads for this rank, as the kernel does for lack of memory."""
    os.kill(reader_of_rank().pid, signal.SIGKILL)


def cut(loader: Any) -> None:
    """Cut each file off, as a disk that fails or a copy that begins again does."""
    for file in loader.dataset.source.files:
        os.truncate(file, 100)


def damage(loader: Any) -> None:
    """Change bytes in the middle of each file's first half."""
    for file in loader.dataset.source.files:
        with file.open("r+b") as data:
            data.seek(file.stat().st_size // 4)
            data.write(b"damaged")


def spoil_pictures(loader: Any) -> None:
    """Replace all pictures by what is none, in records whose checksums are then right."""
    for file in loader.dataset.source.files:
        for offset in record_offsets(file):
            record = read_record(file, offset).replace(b"\xff\xd8\xff", b"\0\0\0")
            with file.open("r+b") as data:
                data.seek(offset + HEAD_BYTES)
                data.write(record + masked_checksum(record))


def leave_no_memory(loader: Any) -> None:
    """Let the process get no more memory for batches, and need some."""
    _, most = resource.prlimit(reader_of_rank().pid, resource.RLIMIT_FSIZE)
    resource.prlimit(reader_of_rank().pid, resource.RLIMIT_FSIZE, (1024, most))
    _kept.extend(loader._next(loader._reader()) for _ in range(8))


def fork(loader: Any) -> None:
    """Fork, as a host's data workers do, with the threads and the reader of this rank there."""
    child = os.fork()
    if not child:
        assert reader_of_rank().can_be_asked, "the child has a reader"
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


FAULTS = {
    "killed": kill,
    "cut off": cut,
    "damaged": damage,
    "no pictures": spoil_pictures,
    "no memory": leave_no_memory,
    "fork": fork,
    "none": lambda loader: None,
}
_kept: list[Any] = []
_batches = 0


def main() -> None:
    name = sys.argv.pop(1)

    def fail_at_the_third(next_of: Callable, loader: Any, stream: Any) -> Any:
        global _batches
        _batches += 1
        if RANK == 1 and _batches == 3:
            print(f"{name} at time {time.time()}", file=sys.stderr, flush=True)
            FAULTS[name](loader)
        return next_of(loader, stream)

    around(base.RLDSLoader, "_next", fail_at_the_third)
    entry.main()


if __name__ == "__main__":
    main()
