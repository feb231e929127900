"""The processes that play episodes, each with its environment and policy, and their faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Pipe, wait
from typing import IO, Any

from robomimic_ddp.config import env, machine
from robomimic_ddp.errors import CheckpointError, DataError
from robomimic_ddp.terminal import say

_MOST_TRIES = 2
"""How often an episode is begun whose process was killed or ended by the time limit."""
_LOOK_SECONDS, _SPARE_SECONDS = 5.0, 120.0
_WORKER_BYTES = 2 * 2**30
"""Memory of a worker with a simulator and a policy of usual size."""


def most_workers(cores: int) -> int:
    """Return how many workers to start for `cores`, as far as this machine's memory allows."""
    return max(1, min(cores, machine.machine_memory() // _WORKER_BYTES))


@dataclass
class Task:
    """An episode to play. message: what the worker is given; shown: the checkpoint's name."""

    message: dict[str, Any]
    shown: str = ""
    tries: int = 0

    def __str__(self) -> str:
        return f"episode {self.message['episode']} of {self.message['env']}"


class Worker:
    """A process that has been playing `task` since the time `began`."""

    def __init__(self, number: int, gpu: str, log: IO[bytes], seconds: float) -> None:
        self.number, self.gpu = number, gpu
        self.connection, far_end = Pipe()
        words = ["-m", "robomimic_ddp.commands.evaluate.worker", far_end.fileno(), seconds]
        self.process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env.simulator_environment(gpu),
            pass_fds=[far_end.fileno()],
            start_new_session=True,
        )
        far_end.close()
        self.task: Task | None = None
        self.began = 0.0

    def begin(self, task: Task) -> None:
        """Have the process play `task`. If it has ended, reading its answer shows that."""
        self.task, self.began = task, time.monotonic()
        task.tries += 1
        with suppress(OSError):
            self.connection.send_bytes(json.dumps(task.message).encode())

    def end(self) -> int:
        """Kill the process and those of its simulator, if they still run; return its exit code."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads its session
        self.connection.close()
        return self.process.wait()


class Pool:
    """Plays tasks on `count` workers, which take turns on `gpus` (values of CUDA_VISIBLE_DEVICES;
    empty: on the CPU). seconds: the time limit of an episode.
    """

    def __init__(self, count: int, gpus: Sequence[str], log: IO[bytes], seconds: float) -> None:
        self.gpus, self.log, self.seconds = list(gpus) or [""], log, seconds
        self.count, self.workers = count, []

    def play(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Yield each task with its answer: "log", or why it was "lost", with "died" if that was the
        end of its process. Raises DataError if a task cannot begin, CheckpointError if that is
        for its policy.
        """
        waiting = deque(tasks)
        try:
            yield from self._play(waiting)
        finally:  # the caller may leave before the last answer
            self._end([worker for worker in self.workers if worker.task])

    def _play(self, waiting: deque[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        while waiting or any(worker.task for worker in self.workers):
            self._start(min(self.count, len(waiting)))
            for worker in self.workers:
                if worker.task is None and waiting:
                    worker.begin(waiting.popleft())
            busy = [worker for worker in self.workers if worker.task]
            ready = wait([worker.connection for worker in busy], _LOOK_SECONDS)
            for worker in busy:
                task = worker.task
                late = time.monotonic() - worker.began > 2 * self.seconds + _SPARE_SECONDS
                # Processes of its simulator may keep the connection of an ended one open.
                if not (worker.connection in ready or late or worker.process.poll() is not None):
                    continue
                answer = self._answer(worker)
                if answer is not None:
                    yield task, answer
                else:
                    waiting.appendleft(task)

    def _start(self, count: int) -> None:
        while len(self.workers) < count:
            numbers = {worker.number for worker in self.workers}
            number = next(n for n in range(count) if n not in numbers)
            gpu = self.gpus[number % len(self.gpus)]
            self.workers.append(Worker(number, gpu, self.log, self.seconds))

    def _answer(self, worker: Worker) -> dict[str, Any] | None:
        """Return a worker's answer; None where its task is to be played again."""
        task, worker.task = worker.task, None
        try:
            answer = json.loads(worker.connection.recv_bytes()) if worker.connection.poll() else {}
        except (EOFError, OSError):
            answer = {}
        if not answer:
            return self._died(worker, task)
        cause = answer.get("text")
        if answer.get("failed") == "memory":
            self._end([worker])
            reason = f"its process ran out of memory ({cause})"
            return self._play_again(task, reason, with_fewer=True)
        if answer.get("failed") == "policy":
            raise CheckpointError(
                f"{task.shown}: the host cannot make its policy here ({cause}). Expected the host "
                "that trained it, with the same edits (also unet_config, if it had that): start "
                f"evaluate in its checkout, or with it on PYTHONPATH. {self.log.name} has the "
                "traceback."
            )
        if answer.get("failed") == "setup":
            raise DataError(
                f"{task} cannot begin: {answer['text']}. The training data names its simulator "
                "(env_args), if there is one; docs/evaluate.md says what simulators need. "
                f"{self.log.name} has the traceback."
            )
        return {"lost": answer["text"]} if "failed" in answer else answer

    def _died(self, worker: Worker, task: Task) -> dict[str, Any] | None:
        seconds = time.monotonic() - worker.began
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(1.0)
        is_late = worker.process.returncode is None
        code = worker.end()
        self.workers.remove(worker)
        if is_late or (code == 1 and seconds >= self.seconds):
            reason = f"it took more than the {self.seconds:g} s of --episode-seconds"
        elif code < 0:
            reason = f"its process was killed by {signal.Signals(-code).name}"
        else:
            reason = f"its process ended with exit code {code}"
        is_full = code == -signal.SIGKILL and not is_late
        reason += " (probably out of memory)" * is_full
        return self._play_again(task, reason, with_fewer=is_full)

    def _play_again(self, task: Task, reason: str, with_fewer: bool) -> dict[str, Any] | None:
        """Return None for another try, or that the task is lost. with_fewer: start no other process
        for the one that has ended.
        """
        if with_fewer:
            self.count = max(1, len(self.workers))
        if task.tries >= _MOST_TRIES:
            return {"lost": reason, "died": True}
        say(f"warning: {task}: {reason}; it is run again", file=sys.stderr)
        return None

    def close(self) -> None:
        """End all processes."""
        self._end(self.workers.copy())

    def _end(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.end()
            self.workers.remove(worker)
