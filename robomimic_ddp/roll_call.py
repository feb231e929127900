"""Names the ranks that others wait for.

A rank that waits long in an exchange says so in the job's store, where the ranks that wait with it
do the same; who has not is late. Nothing is written while nobody waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist
from torch.distributed import distributed_c10d

from robomimic_ddp.errors import LaunchError

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""How long a rank waits without a word; half of the group's timeout where that is shorter, since
whoever runs out of time first ends the job.
"""
_TOGETHER_SECONDS = 2.0
"""Ranks that wait at one place say so within this time of each other."""


@contextmanager
def at(place: str) -> Iterator[None]:
    """Around an exchange between all ranks: warns after a minute which ranks have not come.

    `place` is what a user would call it, such as "end of epoch 3". Raises LaunchError with the same
    list where the exchange fails because the group's time ran out.
    """
    wait = _Wait(place)
    timer = threading.Timer(wait.patience(), wait.warn)
    timer.daemon = True
    timer.start()
    begin = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        if "timed out" not in str(error).lower():
            raise
        raise LaunchError(
            f"{wait.missing()} after {time.monotonic() - begin:.0f} s of waiting (ddp.timeout). "
            "Look there for a hang, a step more or less than on the other ranks, or data that end "
            "early; raise ddp.timeout if it only takes long."
        ) from error
    finally:
        timer.cancel()
        wait.over()


class _Wait:
    """One rank's wait at one place."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._store = distributed_c10d._get_default_store()
        self._said = False

    def patience(self) -> float:
        """Seconds; the store has the group's timeout."""
        return min(PATIENCE_SECONDS, self._store.timeout.total_seconds() / 2)

    def missing(self) -> str:
        """Who is late and for what, after giving other waiting ranks time to say so."""
        self._said = True
        ranks, late = range(dist.get_world_size()), []
        with suppress(RuntimeError):  # the store is gone with the main rank
            self._store.set(self._key(dist.get_rank()), "waiting")
            time.sleep(_TOGETHER_SECONDS)
            late = [rank for rank in ranks if not self._store.check([self._key(rank)])]
        return f"rank(s) {late or 'unknown'} have not reached: {self.place}"

    def warn(self) -> None:
        """Runs in a thread of its own while the rank waits."""
        text = self.missing()
        logger.warning("%s; rank %d waits there", text, dist.get_rank())

    def over(self) -> None:
        """A later wait at a place of this name must not find this one's mark."""
        if self._said:
            with suppress(RuntimeError):
                self._store.delete_key(self._key(dist.get_rank()))

    def _key(self, rank: int) -> str:
        return f"robomimic_ddp/waiting/{self.place}/{rank}"
