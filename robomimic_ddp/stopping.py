"""Stopping on request (Slurm's preemption, a spot machine's notice): all ranks after the same step.

SIGUSR1 is heard during the whole run. SIGTERM is heard during training steps only, where ranks can
agree within a step or two: at other places it ends the process at once, as it always has, so that
a rank which simulates does not outlive a job that has failed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from robomimic_ddp import group

ALWAYS = (getattr(signal, "SIGUSR1", None),)
IN_STEPS = (signal.SIGTERM,)


class Stopper:
    """Hears signals, and finds out whether any rank has heard one. A signal may come any number of
    times.
    """

    def __init__(self) -> None:
        self.heard: str | None = None
        """Name of the first signal that this rank has heard."""
        self._pending: tuple[Any, torch.Tensor] | None = None

    @contextmanager
    def listening(self, *signals: Any) -> Iterator[None]:
        """For the block, `signals` are noted instead of ending the process; where Python allows it,
        which is in the main thread.
        """
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                if number is not None:
                    before[number] = signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _hear(self, number: int, frame: Any) -> None:
        if self.heard is None:
            self.heard = signal.Signals(number).name

    def agreed(self) -> bool:
        """Collective, after every training step: whether to stop now.

        What a rank has heard is summed over the ranks while the next step runs, and looked at after
        it: nobody waits, and all stop after the same step.
        """
        if group.world_size() == 1:
            return self.heard is not None
        if self._answer():
            return True
        heard = torch.tensor([int(self.heard is not None)])
        self._pending = dist.all_reduce(heard, async_op=True), heard
        return False

    def agreed_at_last(self) -> bool:
        """Collective, between epochs: whether to stop now, waiting for the answer."""
        earlier = self._answer()
        return any(group.gather_objects(self.heard is not None)) or earlier

    def _answer(self) -> bool:
        if self._pending is None:
            return False
        work, heard = self._pending
        self._pending = None
        work.wait()
        return bool(heard.item())
