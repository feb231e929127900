"""The ranks of a torchrun agent, or the workers of an evaluation, that was started warm: its
children, forked before it begins.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

WORKERS = 14
"""Of an evaluation, with those in whose place others were started; the next ones are cold."""
_ABOVE = 64
"""File descriptors of a waiting child that none of the started program's can be."""


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
            words, variables, numbers = agent.recv()
            received = [reduction.recv_handle(agent) for _ in numbers]
        except (EOFError, ConnectionResetError):
            os._exit(0)
        agent.close()
        files = [fcntl.fcntl(file, fcntl.F_DUPFD, _ABOVE) for file in received]
        for file in received:
            os.close(file)
        for file, number in zip(files, numbers):
            os.dup2(file, number)
            os.close(file)
        enter(words, variables)

    def start_ranks(self) -> None:
        """torchrun starts its ranks with these children."""
        from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

        assert hasattr(subprocess_handler, "Popen"), "torchrun starts its ranks in another way now"
        subprocess_handler.Popen = self._rank

    def start_workers(self) -> None:
        """`evaluate` starts its workers with these children, while there are any."""
        from robomimic_ddp.commands.evaluate import workers

        workers.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": self._worker})

    def _rank(self, args: tuple, env: dict[str, str], **streams: Any) -> Started:
        assert streams.pop("start_new_session") and not any(streams.values()), streams
        return self._start(args, env, {})

    def _worker(self, args: Sequence[str], **options: Any) -> Any:
        if not self.waiting:
            return subprocess.Popen(args, **options)
        assert args[0] == sys.executable and options["start_new_session"], (args, options)
        output, (connection,) = options["stdout"].fileno(), options["pass_fds"]
        return self._start(args, options["env"], {1: output, 2: output, connection: connection})

    def _start(self, args: Sequence[str], env: dict[str, str], files: dict[int, int]) -> Started:
        """`files`: the child's descriptors, and which of this process they are."""
        pid, connection = self.waiting.pop(0)
        connection.send((list(args[1:]), env, list(files)))
        for file in files.values():
            reduction.send_handle(connection, file, pid)
        connection.close()
        return Started(pid, list(args))


class Started:
    """As much of `subprocess.Popen` as torchrun and `evaluate` use."""

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

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
