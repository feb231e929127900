"""Stopping on request (Slurm's preemption, a spot machine's notice): all ranks after the same step.

SIGTERM and SIGUSR1 are heard from the first epoch on; before it they end the process, as ever. They
are acted on after a training step or between epochs, where ranks agree. SIGTERM is also what
torchrun sends to the ranks of a job that has failed: a rank that finds no such place within
PATIENCE_SECONDS (a long rollout) ends as if nobody had listened.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from robomimic_ddp import group

SIGNALS = (signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM))
PATIENCE_SECONDS = 15.0
"""torchrun kills 30 s after its SIGTERM; a save must fit in the rest."""


class Stopper:
    """Hears signals, and finds out whether any rank has heard one. A signal may come any number of
    times.
    """

    def __init__(self) -> None:
        self.heard: str | None = None
        """Name of the first signal that this rank has heard."""
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._before: dict[int, Any] = {}
        self._patience: threading.Timer | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What `listen` has changed is put back at the end of the block."""
        try:
            yield
        finally:
            self._end_patience()
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self._before.clear()

    def listen(self) -> None:
        """From now on the signals are noted. Python allows that in the main thread only: in another
        one nothing is changed.
        """
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before.setdefault(number, signal.signal(number, self._hear))

    def _hear(self, number: int, frame: Any) -> None:
        if self.heard is None:
            self.heard = signal.Signals(number).name
        if number == signal.SIGTERM and self._patience is None:
            self._patience = threading.Timer(PATIENCE_SECONDS, os._exit, (128 + number,))
            self._patience.daemon = True
            self._patience.start()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def agreed(self) -> bool:
        """Collective, after every training step: whether to stop now.

        What a rank has heard is summed over the ranks while the next step runs, and looked at after
        it: nobody waits, and all stop after the same step.
        """
        if group.world_size() == 1:
            return self._is_end(self.heard is not None)
        if self._is_end(self._answer()):
            return True
        heard = torch.tensor([int(self.heard is not None)])
        self._pending = dist.all_reduce(heard, async_op=True), heard
        return False

    def agreed_at_last(self) -> bool:
        """Collective, between epochs: whether to stop now, waiting for the answer."""
        earlier = self._answer()
        return self._is_end(any(group.gather_objects(self.heard is not None)) or earlier)

    def _is_end(self, stop: bool) -> bool:
        if stop:
            self._end_patience()
        return stop

    def _answer(self) -> bool:
        if self._pending is None:
            return False
        work, heard = self._pending
        self._pending = None
        work.wait()
        return bool(heard.item())
