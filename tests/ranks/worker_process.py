"""The parent's side of one worker process of the pool."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

from tests.ranks.worker import work
from tests.warm.modules import HOST

START_SECONDS = 120.0
"""Watchdog for a worker's start (it imports torch)."""


class WorkerProcess:
    """One process of the pool, its pipe and its two files (output; stacks dumped on SIGUSR1)."""

    def __init__(self, folder: Path, slot: int) -> None:
        # Workers are often replaced; one process imports torch for all of them, in seconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*HOST, "pytest"])
        self.connection, theirs = context.Pipe()
        self.log, self.stacks = folder / f"worker{slot}.log", folder / f"worker{slot}.stacks"
        # Not a daemon: daemonic processes may not start the worker processes of a DataLoader.
        self.process = context.Process(target=work, args=(theirs, str(folder), slot))
        self.process.start()
        theirs.close()
        self.ready = False
        self.output_start = 0

    def await_ready(self) -> None:
        if self.ready:
            return
        if not self.connection.poll(START_SECONDS):
            raise AssertionError(f"a worker did not start within {START_SECONDS} s")
        assert pickle.loads(self.connection.recv_bytes()) == "ready"
        self.ready = True

    def send(self, task: dict[str, Any]) -> None:
        self.output_start = self.log.stat().st_size
        self.connection.send_bytes(pickle.dumps(task))

    def output(self) -> str:
        """The end (8,000 characters) of what the running or last task printed."""
        text = self.log.read_bytes()[self.output_start :].decode(errors="replace")[-8000:]
        return f"\noutput:\n{text}" if text.strip() else ""

    def stack(self) -> str:
        """Where every thread of a hung worker is, newest frame first."""
        start = self.stacks.stat().st_size
        os.kill(self.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 2.0
        while self.stacks.stat().st_size == start and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.05)
        return self.stacks.read_text(errors="replace")[start:]

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
