"""Runs the dot-list entry on RLDS data; at some batches something happens to rank 1.

    torchrun ... -m tests.e2e.entries.faulty_rlds FAULT load_from=cfg.json key=value ...

FAULT: a name of FAULTS.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import robomimic.scripts.train_rlds as entry

from robomimic_ddp.data.rlds.loaders import base
from robomimic_ddp.data.rlds.loaders.remote import reader_of_rank
from tests.e2e.entries.watched_train import RANK, around


def kill(loader: Any) -> None:
    """End the process that reads for this rank, as the kernel does for lack of memory."""
    os.kill(reader_of_rank().pid, signal.SIGKILL)


def fork(loader: Any) -> None:
    """Fork, as a host's data workers do, with the threads and the reader of this rank there."""
    child = os.fork()
    if not child:
        assert reader_of_rank().can_be_asked, "the child has a reader"
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


FAULTS = {"forked and killed": {3: fork, 5: kill}, "none": {}}
"""Name -> number of a batch -> what happens before it."""
_batches = 0


def main() -> None:
    faults = FAULTS[sys.argv.pop(1)]

    def fail(next_of: Callable, loader: Any, stream: Any) -> Any:
        global _batches
        _batches += 1
        if RANK == 1 and (fault := faults.get(_batches)):
            fault(loader)
            print(f"{fault.__name__} at time {time.time()}", file=sys.stderr, flush=True)
        return next_of(loader, stream)

    around(base.RLDSLoader, "_next", fail)
    entry.main()


if __name__ == "__main__":
    main()
