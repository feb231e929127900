"""Stops on request (Slurm's preemption, a spot machine's notice): all ranks after the same step.

SIGTERM, SIGUSR1, SIGHUP (a closed terminal) and Ctrl-C are handled once training begins; earlier
they end the process. Ranks agree on them after a training step, after an epoch's training and
between epochs. A second Ctrl-C ends the process at once.
torchrun also sends SIGTERM to the ranks of a job that has failed. A rank that reaches no such point
within PATIENCE_SECONDS (a long rollout, a GPU that waits for a lost rank) ends; a rank that knows
of the failure ends within FAILED_SECONDS.
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

from robomimic_ddp.config import env
from robomimic_ddp.distributed import end_process, group, watchdog
from robomimic_ddp.terminal import print_clean

REQUEST = signal.SIGUSR1
"""torchrun itself never sends it."""
OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
"""Where they are ignored, as in the background and under nohup, they stay so."""
SIGNALS = (signal.SIGTERM, REQUEST, *OF_TERMINALS)
SAME_INTERRUPT_SECONDS = 1.0
"""One Ctrl-C may come twice, from the terminal and from torchrun."""
PATIENCE_SECONDS = 15.0
"""torchrun kills 30 s after any signal that it has received; the rest is for saving."""
ASK_SECONDS, ASK_ALWAYS = 0.02, 20
"""Ranks ask each other so often, where steps are shorter, since a message costs as much as a small
step; in the first steps after every one.
"""
FAILED_SECONDS = 3.0
"""Time for the last lines of a rank's log."""
_INTERRUPTED = "\nCtrl-C: saving the position inside the epoch; a second Ctrl-C ends at once"


class Stopper:
    """Handles signals, and finds out, as often as it is asked, whether any rank has received one.

    Where the ranks cannot agree in time, this rank ends, and calls one of these in a thread first
    (no collectives there): `on_request` if it received a request, `on_lost_launcher` after
    torchrun's SIGTERM alone.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        """The name of the first signal that this rank has received."""
        self.on_request: Callable[[], None] = lambda: None
        self.on_lost_launcher: Callable[[], None] = lambda: None
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._before: dict[int, Any] = {}
        self._listener: SignalListener | None = None
        self._requested = self._agreed = False
        self._steps, self._ask_at = 0, 0
        """Steps of this process, and how many there are when the ranks ask again."""
        self._asked = time.monotonic(), 0
        """When they asked last, and after which step."""
        self._timers: list[threading.Timer] = []
        self._interrupted: float | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Restores what `listen` changes at the end of the block."""
        try:
            yield
        finally:
            self._cancel_exit()
            _restore(self._before)
            self._before.clear()
            if self._listener is not None:
                self._listener.close()
                self._listener = None

    def listen(self) -> None:
        """Starts to handle the signals; only in the main thread, as Python requires."""
        if self._listener is None and threading.current_thread() is threading.main_thread():
            self._listener = SignalListener(self._on_signal_at_once, self._before)
            for signum in SIGNALS:
                if signum not in OF_TERMINALS or signal.getsignal(signum) != signal.SIG_IGN:
                    self._before.setdefault(signum, signal.signal(signum, self._on_signal))

    def _on_signal(self, signum: int, frame: Any) -> None:
        """In the main thread, between two Python instructions, which may be much later."""
        if self.received is None:
            self.received = signal.Signals(signum).name

    def _on_signal_at_once(self, signum: int) -> None:
        """In the listener's thread."""
        if signum == signal.SIGINT:
            self._interrupt()
        if signum in (REQUEST, signal.SIGHUP):
            self._requested = True
        if signum in (signal.SIGTERM, signal.SIGHUP) or signum == REQUEST and env.under_torchrun():
            self._exit_after(PATIENCE_SECONDS)
            if watchdog.somebody_failed():
                self._exit_after(FAILED_SECONDS)

    def _interrupt(self) -> None:
        now = time.monotonic()
        if self._interrupted is None:
            self._interrupted = now
            if group.is_main():
                with suppress(OSError, ValueError):  # a closed terminal
                    print_clean(_INTERRUPTED, file=sys.__stderr__)
            if group.world_size() > 1:  # torchrun kills the ranks after a while
                self._requested = True
                self._exit_after(PATIENCE_SECONDS)
        elif now - self._interrupted > SAME_INTERRUPT_SECONDS:
            end_process.exit_with_workers(128 + signal.SIGINT)

    def _exit_after(self, seconds: float) -> None:
        """Ends the process in `seconds`, unless the ranks agree to stop before."""
        if not self._agreed and len(self._timers) < 2:
            timer = threading.Timer(seconds, self._exit)
            timer.daemon = True
            self._timers.append(timer)
            timer.start()

    def _exit(self) -> None:
        if not self._agreed:
            with suppress(Exception):
                self.on_request() if self._requested else self.on_lost_launcher()
            end_process.exit_with_workers(128 + signal.SIGTERM)

    def _cancel_exit(self) -> None:
        self._agreed = True
        for timer in self._timers:
            timer.cancel()

    def agreed(self) -> bool:
        """Collective, after every training step: returns whether to stop now.

        The flags are summed over the ranks while the next step runs, and read after it: no rank
        waits, and all stop after the same step. Steps that are shorter than ASK_SECONDS ask
        together.
        """
        several = group.world_size() > 1
        stop = self._read_answer() if several else self.received is not None
        if stop:
            self._cancel_exit()
        elif several:
            self._steps += 1
            if self._steps >= self._ask_at:
                self._ask()
        return stop

    def _ask(self) -> None:
        """Collective: sends whether this rank has received a signal, and the seconds of a step."""
        now, (before, steps) = time.monotonic(), self._asked
        self._asked = now, self._steps
        seconds = (now - before) / (self._steps - steps)
        flags = torch.tensor([self.received is not None, seconds], dtype=torch.float64)
        self._pending = dist.all_reduce(flags, async_op=True), flags

    def agreed_at_last(self) -> bool:
        """Collective, between steps: returns whether to stop now. Waits for the ranks."""
        earlier = self._read_answer()
        stop = any(group.gather_objects(self.received is not None)) or earlier
        if stop:
            self._cancel_exit()
        return stop

    def _read_answer(self) -> bool:
        if self._pending is None:
            return False
        work, flags = self._pending
        self._pending = None
        work.wait()
        signals, seconds = flags.tolist()
        if self._steps >= ASK_ALWAYS:  # the same on all ranks, as the sum of their seconds is
            self._ask_at = self._steps + int(ASK_SECONDS * group.world_size() / max(seconds, 1e-6))
        return signals > 0


def _restore(handlers: dict[int, Any]) -> None:
    for signum, handler in handlers.items():
        signal.signal(signum, signal.SIG_DFL if handler is None else handler)


class SignalListener:
    """Calls `on_signal(signum)` for each signal in a separate thread: Python runs handlers between
    two instructions of the main thread, which may wait in C indefinitely (for a GPU, for a lost
    rank).

    before: signal -> its earlier handler; a forked process restores these.
    """

    _open: list[SignalListener] = []
    has_terminated = False
    """Whether an entry point has received SIGTERM, which torchrun sends where a rank has failed."""

    def __init__(self, on_signal: Callable[[int], None], before: dict[int, Any]) -> None:
        self._on_signal, self._before = on_signal, before
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)  # required by Python
        self._former = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(
            target=self._listen, name="robomimic-ddp-signals", daemon=True
        )
        self._thread.start()
        SignalListener._open.append(self)

    def _listen(self) -> None:
        while data := self._receiver.recv(64):
            for signum in data:
                SignalListener.has_terminated |= signum == signal.SIGTERM
                self._on_signal(signum)

    def close(self) -> None:
        """Ends the thread, and gives the signals back."""
        signal.set_wakeup_fd(self._former)
        SignalListener._open.remove(self)
        self._sender.shutdown(socket.SHUT_WR)  # a forked process has copies, which keep it open
        self._thread.join()
        self._sender.close()
        self._receiver.close()

    @classmethod
    def block(cls) -> None:
        """Before a fork: a signal that the child received before `leave` would reach the parent."""
        if cls._open:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    @classmethod
    def unblock(cls) -> None:
        """After a fork, in the parent."""
        if cls._open:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    @classmethod
    def leave(cls) -> None:
        """After a fork, in the child: its parent handles the process group's signals (Ctrl-C)."""
        if cls._open:
            with suppress(OSError):
                os.setpgid(0, 0)
        for listener in cls._open:
            signal.set_wakeup_fd(-1)
            _restore(listener._before)
        cls.unblock()
        cls._open.clear()


os.register_at_fork(
    before=SignalListener.block,
    after_in_parent=SignalListener.unblock,
    after_in_child=SignalListener.leave,
)
