"""The ranks of one variant: processes that answer requests, so that variants can take turns."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from robomimic_ddp.errors import ConfigError

_ANSWER = "bench "
"""The beginning of a line with an answer, in JSON; the host prints other lines."""
_END_SECONDS = 10.0
"""So long a process may take to end once its stdin is closed; one that waits for a lost rank does
not.
"""


class Ranks:
    """Processes of the variant `label`, one for each of `count` ranks, until `stack` closes. A
    process answers once when it can begin, then each line of its stdin, and ends with its stdin.
    """

    def __init__(self, label: str, count: int, stack: ExitStack) -> None:
        self.label, self.count = label, count
        self._stack = stack
        self._processes: list[tuple[subprocess.Popen, Any]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        stack.callback(self._end)

    def launcher_variables(self, rank: int) -> dict[str, str]:
        """Return what a launcher would set for that rank."""
        world = str(self.count)
        return {
            **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
            **{"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port},
        }

    def start(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start the next rank, `python -m words`, with these variables alone."""
        # A file: a compiler's warnings would fill a pipe.
        errors = self._stack.enter_context(tempfile.TemporaryFile("w+"))
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self._processes.append((process, errors))

    def ask(self, request: str) -> list[Any]:
        """Send a line to all ranks, and return their answers. Raises ConfigError if one has
        ended.
        """
        for process, _ in self._processes:
            with suppress(BrokenPipeError):  # its error follows
                process.stdin.write(f"{request}\n")
                process.stdin.flush()
        return self.answers()

    def answers(self) -> list[Any]:
        """Return the next answer of each rank. Raises ConfigError if one has ended."""
        return [self._answer(*rank) for rank in self._processes]

    def _answer(self, process: subprocess.Popen, errors: Any) -> Any:
        for line in process.stdout:
            if line.startswith(_ANSWER):
                return json.loads(line.removeprefix(_ANSWER))
        process.wait()
        errors.seek(0)
        text = errors.read().strip().splitlines() or ["no output"]
        raise ConfigError(f"a process of {self.label} ended: {text[-1]}")

    def _end(self) -> None:
        for process, _ in self._processes:
            with suppress(BrokenPipeError):
                process.stdin.close()
        for process, _ in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()  # does nothing to one that has ended
            process.wait()
            process.stdout.close()
