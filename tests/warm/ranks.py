"""The ranks of a torchrun agent that was started warm: its children, forked before it begins."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Nursery:
    """`count` children that wait to be started; `enter(words, variables)` is what each then does.

    In a child the constructor returns when it has done that: `rank_has_run`. A child whose agent
    ends without having started it ends too.
    """

    def __init__(self, count: int, enter: Callable[[list[str], dict[str, str]], None]) -> None:
        self.waiting: list[tuple[int, Connection]] = []
        self.rank_has_run = False
        for _ in range(count):
            ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
            pid = os.fork()
            if pid:
                theirs.close()
                self.waiting.append((pid, ours))
                continue
            for connection in (ours, *(other for _, other in self.waiting)):
                connection.close()  # else the end of the agent would not be seen
            self._wait(theirs, enter)
            self.rank_has_run = True
            return

    def _wait(self, agent: Connection, enter: Callable) -> None:
        os.setsid()
        try:
            words, variables = agent.recv()
        except (EOFError, ConnectionResetError):
            os._exit(0)
        agent.close()
        enter(words, variables)

    def install(self) -> None:
        """torchrun starts its ranks with these children."""
        from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

        assert hasattr(subprocess_handler, "Popen"), "torchrun starts its ranks in another way now"
        subprocess_handler.Popen = self.start

    def start(self, args: tuple, env: dict[str, str], **streams: Any) -> StartedRank:
        """In place of `subprocess.Popen`."""
        assert streams.pop("start_new_session") and not any(streams.values()), streams
        pid, connection = self.waiting.pop(0)
        connection.send((list(args[1:]), env))
        connection.close()
        return StartedRank(pid, list(args))


class StartedRank:
    """As much of `subprocess.Popen` as torchrun uses."""

    def __init__(self, pid: int, args: list[str]) -> None:
        self.pid, self.args, self.returncode = pid, args, None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
