"""Stops on request (Slurm's preemption, a spot machine's notice): all ranks after the same step.

SIGTERM, SIGUSR1 and Ctrl-C are handled from the first epoch on; before it they end the process.
Ranks agree on them after a training step, after an epoch's training and between epochs. A second
Ctrl-C ends the process at once.
torchrun also sends SIGTERM to the ranks of a job that has failed: a rank that reaches no such place
within PATIENCE_SECONDS (a long rollout, a GPU that waits for a lost rank) ends, and one that knows
of the failure within FAILED_SECONDS.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from robomimic_ddp.distributed import group, watchdog

REQUEST = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""torchrun itself never sends it."""
SIGNALS = (signal.SIGTERM, REQUEST, signal.SIGINT)
SAME_INTERRUPT_SECONDS = 1.0
"""One Ctrl-C may come twice, from the terminal and from torchrun."""
PATIENCE_SECONDS = 15.0
"""torchrun kills 30 s after its SIGTERM; the rest is for saving."""
FAILED_SECONDS = 3.0
"""Time for the last lines of a rank's log."""


class Stopper:
    """Handles signals, and finds whether any rank has received one, any number of times.

    last_words: called in a thread before this rank ends after PATIENCE_SECONDS, if it received a
    request (and not only the SIGTERM of a failed job). No collectives there. parting: called there
    after a SIGTERM alone.
    """

    def __init__(self) -> None:
        self.heard: str | None = None
        """Name of the first signal that this rank has received."""
        self.last_words: Callable[[], None] = lambda: None
        self.parting: Callable[[], None] = lambda: None
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._before: dict[int, Any] = {}
        self._exit_timer = ExitTimer(lambda: self.last_words(), lambda: self.parting())
        self._listener: SignalListener | None = None
        self._interrupted: float | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Restores what `listen` changes at the end of the block."""
        try:
            yield
        finally:
            self._exit_timer.end()
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self._before.clear()
            if self._listener is not None:
                self._listener.close()
                self._listener = None

    def listen(self) -> None:
        """Handles the signals from now on; only in the main thread, as Python requires."""
        if self._listener is None and threading.current_thread() is threading.main_thread():
            self._listener = SignalListener(self._came, self._before)
            for number in SIGNALS:
                if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                    self._before.setdefault(number, signal.signal(number, self._hear))

    def _hear(self, number: int, frame: Any) -> None:
        """In the main thread, between two Python instructions: maybe long after `_came`."""
        if self.heard is None:
            self.heard = signal.Signals(number).name

    def _came(self, number: int) -> None:
        """In the listener's thread, at once."""
        if number == signal.SIGINT:
            self._interrupt()
        if number == REQUEST:
            self._exit_timer.requested = True
        if number == signal.SIGTERM:
            self._exit_timer.begin(PATIENCE_SECONDS)
            if watchdog.somebody_failed():
                self._exit_timer.begin(FAILED_SECONDS)

    def _interrupt(self) -> None:
        now = time.monotonic()
        if self._interrupted is None:
            self._interrupted = now
            if group.is_main():
                _show("\nCtrl-C: saving the place inside the epoch; a second one ends at once\n")
            if group.world_size() > 1:  # torchrun kills the ranks after a while
                self._exit_timer.requested = True
                self._exit_timer.begin(PATIENCE_SECONDS)
        elif now - self._interrupted > SAME_INTERRUPT_SECONDS:
            group.exit_with_workers(128 + signal.SIGINT)

    def agreed(self) -> bool:
        """Collective, after every training step: whether to stop now.

        The flags are summed over the ranks while the next step runs, and read after it: no rank
        waits, and all stop after the same step.
        """
        if group.world_size() == 1:
            return self._is_end(self.heard is not None)
        if self._is_end(self._answer()):
            return True
        heard = torch.tensor([int(self.heard is not None)])
        self._pending = dist.all_reduce(heard, async_op=True), heard
        return False

    def agreed_at_last(self) -> bool:
        """Collective, between steps: whether to stop now. Waits for the ranks."""
        earlier = self._answer()
        return self._is_end(any(group.gather_objects(self.heard is not None)) or earlier)

    def _is_end(self, stop: bool) -> bool:
        if stop:
            self._exit_timer.end()
        return stop

    def _answer(self) -> bool:
        if self._pending is None:
            return False
        work, heard = self._pending
        self._pending = None
        work.wait()
        return bool(heard.item())


def _show(text: str) -> None:
    with suppress(OSError, ValueError):  # a closed terminal
        sys.__stderr__.write(text)
        sys.__stderr__.flush()


class ExitTimer:
    """A timer that ends this process, unless `end` is called first."""

    def __init__(
        self, last_words: Callable[[], None], parting: Callable[[], None] = lambda: None
    ) -> None:
        self.requested = False
        self._last_words, self._parting = last_words, parting
        self._timers: list[threading.Timer] = []
        self._over = False

    def begin(self, seconds: float) -> None:
        """The process ends in `seconds`, or at an earlier time set before."""
        if self._over or len(self._timers) > 1:
            return
        timer = threading.Timer(seconds, self._give_up)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def end(self) -> None:
        """Cancels the timer: the ranks stop in order."""
        self._over = True
        for timer in self._timers:
            timer.cancel()

    def _give_up(self) -> None:
        if not self._over:
            with suppress(Exception):
                self._last_words() if self.requested else self._parting()
            group.exit_with_workers(128 + signal.SIGTERM)


class SignalListener:
    """Calls `came(number)` for each signal in a separate thread: Python runs handlers between two
    instructions of the main thread, which may wait in C for ever (for a GPU, for a lost rank).

    before: signal -> its handler before; a forked process restores these.
    """

    _open: list[SignalListener] = []

    def __init__(self, came: Callable[[int], None], before: dict[int, Any]) -> None:
        self._came, self.before = came, before
        self._heard, self._sender = socket.socketpair()
        self._sender.setblocking(False)  # required by Python
        self._former = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="robomimic-ddp-ear", daemon=True)
        self._thread.start()
        SignalListener._open.append(self)

    def _listen(self) -> None:
        while data := self._heard.recv(64):
            if self._former >= 0:
                with suppress(OSError):
                    os.write(self._former, data)
            for number in data:
                self._came(number)

    def close(self) -> None:
        """Restores the handlers."""
        signal.set_wakeup_fd(self._former)
        SignalListener._open.remove(self)
        self._sender.shutdown(socket.SHUT_WR)  # a forked process has copies, which keep it open
        self._thread.join()
        self._sender.close()
        self._heard.close()

    @classmethod
    def before_fork(cls) -> None:
        """Blocks signals until the handlers are restored; they would reach the parent."""
        if cls._open:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    @classmethod
    def after_fork(cls) -> None:
        """In the parent."""
        if cls._open:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    @classmethod
    def leave_fork(cls) -> None:
        """In the forked process: its parent handles the process group's signals (Ctrl-C)."""
        if cls._open:
            with suppress(OSError):
                os.setpgid(0, 0)
        for ear in cls._open:
            signal.set_wakeup_fd(-1)
            for number, handler in ear.before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        cls.after_fork()
        cls._open.clear()


os.register_at_fork(
    before=SignalListener.before_fork,
    after_in_parent=SignalListener.after_fork,
    after_in_child=SignalListener.leave_fork,
)
