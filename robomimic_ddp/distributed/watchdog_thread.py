"""The thread that publishes where a rank is, and reads where the others are."""

from __future__ import annotations

import json
import logging
import operator
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from robomimic_ddp.config import env
from robomimic_ddp.terminal import listed

logger = logging.getLogger(__name__)

_KEY = "robomimic_ddp/place/{}"
_NEVER_SET = "nothing was set"
_LONGEST_BEAT = 5.0
_FIRST_WARNING = 60.0
_NOT_STARTED = (-1, 0, 0), "not started", 0.0
_NOBODY = (
    "No other rank is behind it: all are inside the same step, and one of them hangs there. "
    "`py-spy dump --pid` of each rank shows which"
)
_UNHEARD = (
    "No other rank is behind it, and a process is frozen, or a node or the network to it is lost: "
    "nothing has been heard from"
)
_SILENT = (
    "What the others do is unknown: their store, in the launcher at {}, does not answer, so that "
    "node or the network to it is lost"
)
_ANSWER_SECONDS = 10.0
"""A store answers within milliseconds. torch waits without a limit for one whose node is lost."""


class StoreSilent(Exception):
    """The store has not answered in time."""


class Watchdog:
    """This rank's place and the others', by the store.

    store: the process group's; timeout: of collectives, in seconds; the first warning comes after a
    third of it, at most 60 s; ends_unheard: a collective that times out ends the process without an
    exception, as NCCL's watchdog does, so the verdict is printed shortly before.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        timeout: float,
        ends_unheard: bool = False,
    ) -> None:
        self.store, self.rank, self.world_size, self.timeout = store, rank, world_size, timeout
        self.ends_unheard = ends_unheard
        self.beat = min(_LONGEST_BEAT, timeout / 10)
        self._place, self._number, self._step, self._part = "start", 0, 0, 0
        self._met = self._since = time.monotonic()
        self.hosts: list[str] = []
        """The name of each rank's node, if known."""
        self._turn, self._question = threading.Lock(), threading.Thread()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="robomimic-ddp-watchdog", daemon=True
        )

    def reached(self, place: str) -> None:
        """Records that this rank has reached `place`; all ranks pass the same places in order."""
        self._place, self._number, self._step, self._part = place, self._number + 1, 0, 0
        self._since = time.monotonic()

    def stepped(self) -> None:
        """Records one more training step, which all ranks take together."""
        self._step, self._part = self._step + 1, 0
        self._since = time.monotonic()

    def restart_wait(self) -> None:
        """Counts this rank's wait from now."""
        self._since = time.monotonic()

    def began(self) -> None:
        """Records one more forward of a net in the current step."""
        self._part += 1

    def start(self) -> None:
        """Starts the thread."""
        with suppress(StoreSilent):
            self.ask(self._publish)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; returns once it no longer uses the store, if that answers."""
        self._stop.set()
        self._thread.join()

    def ask(self, question: Callable[[], Any]) -> Any:
        """Return the result of `question`, which uses the store. Raises its error, and StoreSilent
        if it takes too long, or if an earlier question is still without an answer.
        """
        outcome: list[Any] = []

        def answer() -> None:
            try:
                outcome.append(question())
            except Exception as error:
                outcome.append(error)

        with self._turn:
            if not self._question.is_alive():
                self._question = threading.Thread(
                    target=answer, name="robomimic-ddp-store", daemon=True
                )
                self._question.start()
                self._question.join(_ANSWER_SECONDS)
        if not outcome:
            raise StoreSilent
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def name(self, rank: int) -> str:
        """Return how messages call a rank: with its node, if there are several."""
        return f"rank {rank} ({self.hosts[rank]})" if len({*self.hosts}) > 1 else f"rank {rank}"

    def late(self) -> str:
        """Return the ranks that are behind this one, in one line; empty for none."""
        return self._ranks_where(operator.lt)

    def ahead(self) -> str:
        """Return the ranks that are ahead of this one, in one line; empty for none."""
        return self._ranks_where(operator.gt)

    def _ranks_where(self, compares: Callable[[tuple, tuple], bool]) -> str:
        ranks = [
            f"{self.name(rank)} is at: {place} (last heard from {age:.0f} s ago)"
            for rank, position, place, age in self._others()
            if compares(position, self._position)
        ]
        return listed(ranks, "; ")

    def silent(self) -> str:
        """Return the ranks that have published nothing for half of the timeout; empty for none."""
        ranks = [
            f"{self.name(rank)} for {age:.0f} s"
            for rank, _, _, age in self._others()
            if age > self.timeout / 2
        ]
        return listed(ranks, "; ")

    def _others(self) -> Iterator[tuple[int, tuple, str, float]]:
        """Yield (rank, position, place, seconds since it was published) of the other ranks."""
        for rank in range(self.world_size):
            if rank != self.rank:
                value = value_of(self.store, _KEY.format(rank))
                position, place, published = json.loads(value) if value else _NOT_STARTED
                age = max(0.0, self._now - published) if value else 0.0
                yield rank, tuple(position), place, age

    @property
    def _now(self) -> float:
        """The seconds since the ranks have met, which every rank counts from the same moment: the
        clocks of nodes may differ.
        """
        return time.monotonic() - self._met

    @property
    def _position(self) -> tuple[int, int, int]:
        return self._number, self._step, self._part

    def describe(self) -> str:
        """Return this rank's place."""
        return f"{self._place}, step {self._step}" if self._step else self._place

    def _publish(self) -> None:
        value = [self._position, self.describe(), self._now]
        self.store.set(_KEY.format(self.rank), json.dumps(value))

    def verdict(self) -> str:
        """Return where this rank is and which ranks are behind it, after a timeout."""
        late = self._whom_it_waits_for()
        others = late or _NOBODY
        if not late and (silent := self.ask(self.silent)):
            others = f"{_UNHEARD} {silent}"
        elif not late and (ahead := self.ask(self.ahead)):
            others = f"Other ranks are executing a different collective: {ahead}"
        return (
            f"{self.name(self.rank)} waited at: {self.describe()}, for at least {self.timeout:g} s "
            f"(ddp.timeout). {others}"
        )

    def _whom_it_waits_for(self) -> str:
        """Return the ranks that are behind, in a sentence; empty for none."""
        try:
            late = self.ask(self.late)
        except StoreSilent:
            return _SILENT.format(env.main_address())
        return f"Not there yet: {late}" if late else ""

    def _watch(self) -> None:
        patience = min(_FIRST_WARNING, self.timeout / 3)
        last_chance = self.timeout - 2 * self.beat
        warned_of = judged = None
        while not self._stop.wait(self.beat):
            here = (self._number, self._step)
            ends_unheard = self.ends_unheard  # before the wait, which restarts before it is set
            waited = time.monotonic() - self._since
            try:
                with suppress(StoreSilent):
                    self.ask(self._publish)
                judges = ends_unheard and waited > last_chance and judged != here
                if judges and self._whom_it_waits_for():
                    judged = here
                    logger.error("%s. NCCL ends this rank now", self.verdict())
                if waited < patience or warned_of == here:
                    continue
                late = self._whom_it_waits_for()
            except Exception:  # the store ended with its rank or agent
                return
            if late and here == (self._number, self._step):
                warned_of = here
                logger.warning(
                    "%s has been waiting for %.0f s at: %s. %s",
                    *(self.name(self.rank), waited, self.describe(), late),
                )


def value_of(store: Any, key: str) -> bytes | None:
    """Return the value of `key`, or None, without waiting as `get` does. torch 2.0 has no `check`:
    compare_set with a value that is never set returns the current one.
    """
    value = store.compare_set(key, _NEVER_SET, _NEVER_SET)
    return None if value == _NEVER_SET.encode() else value
