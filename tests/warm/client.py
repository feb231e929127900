"""The test process's side of tests/warm/server.py."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
AT_START = (
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES"),
    *("PYTHONHASHSEED", "PYTHONFAULTHANDLER", "LD_PRELOAD"),
)
"""Variables that Python or a library reads once, when it is loaded."""
_START_SECONDS = 200.0


@functools.cache
def can_be_warm() -> bool:
    """Whether this system forks, and this torchrun starts ranks where tests/warm/ranks.py can put
    forked ones in their place (torch 2.0 does not).
    """
    torchruns = "torch.distributed.elastic.multiprocessing.subprocess_handler"
    try:
        return sys.platform == "linux" and importlib.util.find_spec(torchruns) is not None
    except ModuleNotFoundError:
        return False


class WarmPython:
    """A server with its socket, one job at a time. `kind`: "host", or "rlds" with TensorFlow."""

    def __init__(self, kind: str, variables: Mapping[str, str]) -> None:
        self.at_start = {name: variables.get(name) for name in AT_START}
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-m", "tests.warm.server", str(theirs.fileno()), kind]
        self.process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**variables, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        assert self.connection.poll(_START_SECONDS) and self.connection.recv() == "ready"
        atexit.register(self.close)

    def start(self, words: list[str], variables: Mapping[str, str], **job: Any) -> None:
        """Begins `python words`. job: folder, stdout, stderr, and ranks, how many torchrun is going
        to start, restarts included; 0 for another module.
        """
        for name, text in self.at_start.items():
            assert variables.get(name) == text, f"{name} acts at a cold start only"
        self.connection.send({"words": words, "variables": dict(variables), **job})

    def wait(self, timeout: float) -> int | None:
        """The job's exit code, or None when it still runs."""
        return self.connection.recv() if self.connection.poll(timeout) else None

    def running(self) -> list[psutil.Process]:
        """The job's processes, and what it has left behind."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def close(self) -> None:
        """Ends the server and what a job may have left."""
        atexit.unregister(self.close)
        for process in self.running() if self.process.poll() is None else ():
            process.kill()
        self.connection.close()
        self.process.kill()
        self.process.wait()


_SERVERS: dict[str, WarmPython] = {}


def server(kind: str, variables: Mapping[str, str]) -> WarmPython:
    """This process's server of that kind, begun when first needed and when it was lost."""
    known = _SERVERS.get(kind)
    if known is None or known.process.poll() is not None:
        known = _SERVERS[kind] = WarmPython(kind, variables)
    return known
