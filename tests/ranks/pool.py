"""A session-wide pool of CPU worker processes in which tests run several gloo ranks.

    def sum_of_ranks(start):                       # module level: workers import it
        return float(group.sum_over_ranks(torch.tensor(start + group.rank())))

    def test_sum(ranks):
        assert ranks.run(sum_of_ranks, 10.0) == [21.0, 21.0]

A worker has the same rank in every call, and every call a new process group, formed through a file
(never a port). Workers see the variables that torchrun sets for ranks, start every task with the
same random streams, and get their environment, folder, sys.path, standard streams and signals back
afterwards.
"""

from __future__ import annotations

import atexit
import math
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.ranks.worker_process import WorkerProcess

GRACE_SECONDS = 5.0
"""After the first failed rank, how long the others get to notice before they are killed."""


class RankError(AssertionError):
    """A rank failed, died or hung. `by_rank`: rank -> its traceback or fate, earliest first;
    `silent`: the ranks that did not answer in time.
    """

    def __init__(self, by_rank: dict[int, str], silent: frozenset[int] = frozenset()) -> None:
        self.by_rank, self.silent = by_rank, silent
        parts = [f"----- rank {rank} -----\n{text.rstrip()}" for rank, text in by_rank.items()]
        super().__init__("\n" + "\n".join(parts))


class RankPool:
    """Runs functions on gloo ranks. Workers are started when first needed, replaced when lost.

    `_workers`: by rank.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._workers: dict[int, WorkerProcess] = {}
        self._started = 0
        self._runs = 0
        # Else an interpreter that ends without `close` waits for its workers, and they for it.
        atexit.register(self.close)

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        world_size: int = 2,
        timeout: float = 60.0,
        process_group: bool = True,
        environment: dict[str, str] | None = None,
    ) -> list[Any]:
        """Calls `function(*arguments)` on every rank and returns the results in rank order.

        `function` is a module-level function of an importable module; arguments and results are
        picklable. `process_group=False` runs it without a group (to test how one is formed; a file
        for the rendezvous is in the variable RANKS_RENDEZVOUS). `environment` is added to the
        workers' variables.
        Raises `RankError` if a rank raised, died, or did not answer within `timeout` seconds.
        """
        workers = self._ready_workers(world_size)
        self._runs += 1
        folder, call = self._folder.name, pickle.dumps((function, arguments))
        for rank, worker in enumerate(workers):
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "unused",
                "MASTER_PORT": "1",
                "RANKS_RENDEZVOUS": f"{folder}/rendezvous{self._runs}",
                **(environment or {}),
            }
            task = {
                "call": call,
                "rank": rank,
                "world_size": world_size,
                "group": f"{folder}/group{self._runs}" if process_group else None,
                "environment": variables,
                "path": list(sys.path),
            }
            worker.send(task)
        return self._collect(workers, timeout)

    def close(self) -> None:
        """Ends every worker."""
        for worker in list(self._workers.values()):
            worker.kill()
        self._workers.clear()
        self._folder.cleanup()
        atexit.unregister(self.close)

    def _ready_workers(self, world_size: int) -> list[WorkerProcess]:
        for rank in range(world_size):
            worker = self._workers.get(rank)
            if worker is not None and not worker.process.is_alive():
                self._discard(worker)
            if rank not in self._workers:
                self._workers[rank] = WorkerProcess(Path(self._folder.name), self._started)
                self._started += 1
        workers = [self._workers[rank] for rank in range(world_size)]
        for worker in workers:
            worker.await_ready()
        return workers

    def _discard(self, lost: WorkerProcess) -> None:
        """End a worker; the next call starts another."""
        (rank,) = (rank for rank, worker in self._workers.items() if worker is lost)
        self._workers.pop(rank).kill()

    def _collect(self, workers: list[WorkerProcess], timeout: float) -> list[Any]:
        """Return results in rank order."""
        results: dict[int, Any] = {}
        failures: dict[int, tuple[float, str]] = {}
        pending = {worker.connection: rank for rank, worker in enumerate(workers)}
        deadline = time.monotonic() + timeout
        while pending:
            answered = wait(list(pending), max(0.0, deadline - time.monotonic()))
            if not answered:
                break
            for connection in answered:
                rank = pending.pop(connection)
                failed = self._receive(workers[rank], rank, results, failures)
                if failed and len(failures) == 1:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        reason = "after another rank failed" if failures else f"within {timeout} s"
        for rank in pending.values():
            worker = workers[rank]
            text = f"did not answer {reason}; its stacks:\n{worker.stack()}{worker.output()}"
            failures[rank] = (time.monotonic(), text)
            self._discard(worker)
        if failures:
            in_time = sorted(failures.items(), key=lambda item: item[1][0])
            silent = frozenset(pending.values())
            raise RankError({rank: text for rank, (_, text) in in_time}, silent)
        return [results[rank] for rank in range(len(workers))]

    def _receive(
        self,
        worker: WorkerProcess,
        rank: int,
        results: dict[int, Any],
        failures: dict[int, tuple[float, str]],
    ) -> bool:
        """Files one rank's answer under results or failures; returns whether the rank failed."""
        try:
            done, value, reusable = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            worker.process.join(GRACE_SECONDS)
            # Its moment is unknown; it is the cause of whatever else went wrong, so it comes first.
            text = f"died with exit code {worker.process.exitcode}{worker.output()}"
            failures[rank] = (-math.inf, text)
            self._discard(worker)
            return True
        if not reusable:
            self._discard(worker)
        if done:
            results[rank] = pickle.loads(value)
        else:
            moment, text = value
            failures[rank] = (moment, text + worker.output())
        return not done
