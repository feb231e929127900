"""Evaluation with little memory: how many processes are started, and what happens to an episode
whose process has run out of it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from multiprocessing.connection import Pipe
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from robomimic_ddp.commands.evaluate import worker, workers
from robomimic_ddp.commands.evaluate.workers import Pool, Task
from robomimic_ddp.config import machine
from tests.processes import wait_for

LOG = {"log": {"Success_Rate": 1.0}}
FULL = {"failed": "memory", "text": "OutOfMemoryError: CUDA out of memory."}
GIB = 2**30
Respond = Callable[[int, dict[str, Any]], dict[str, Any]]


class FakePlayer:
    """A player whose GPU is full when the stage `fails` begins."""

    unseeded: set[str] = set()
    key = ""

    def __init__(self, fails: str, error: Exception) -> None:
        self.fails, self.error = fails, error

    def _begin(self, stage: str) -> dict[str, float]:
        if stage == self.fails:
            raise self.error
        return {}

    def load(self, task: dict[str, Any]) -> None:
        self._begin("load")

    def make(self, task: dict[str, Any]) -> None:
        self._begin("make")

    def play(self, task: dict[str, Any]) -> dict[str, float]:
        return self._begin("play")


@pytest.mark.parametrize("stage", ["load", "make", "play"])
@pytest.mark.parametrize(
    "error",
    [torch.cuda.OutOfMemoryError("no room"), RuntimeError("CUDA error: out of memory")],
)
def test_a_full_gpu_is_no_fault_of_the_policy_the_simulator_or_the_episode(stage, error):
    pytest.importorskip("robomimic")
    answer = worker.reply(FakePlayer(stage, error), {}, 60.0)
    assert answer == {"failed": "memory", "text": f"{type(error).__name__}: {error}"}


class FakeWorker:
    """Answers each task at once, as `respond` does for it and the number of this worker."""

    def __init__(self, respond: Respond, number: int, *_: Any) -> None:
        self.respond, self.number = respond, number
        self.task, self.began = None, 0.0
        self.connection, self.far_end = Pipe()

    def begin(self, task: Task) -> None:
        self.task, self.began = task, workers.time.monotonic()
        task.tries += 1
        answer = self.respond(self.number, task.message)
        self.far_end.send_bytes(json.dumps(answer).encode())

    def end(self) -> int:
        self.connection.close()
        self.far_end.close()
        return 0


def played(pool: Pool, episodes: int) -> dict[int, dict[str, Any]]:
    tasks = [Task({"env": "lift", "episode": number}, "last.pth") for number in range(episodes)]
    return {task.message["episode"]: answer for task, answer in pool.play(tasks)}


@pytest.fixture
def pool(monkeypatch):
    """`pool(count, respond)`: with that many workers, which answer so."""

    def make(count: int, respond: Respond) -> Pool:
        monkeypatch.setattr(workers, "Worker", functools.partial(FakeWorker, respond))
        return Pool(count, [], SimpleNamespace(name="evaluation.log"), 60.0)

    return make


def test_workers_that_do_not_fit_in_the_memory_are_not_replaced_and_no_episode_is_lost(
    pool, capsys
):
    """The others play their episodes, and as many play the next checkpoint."""
    evaluation = pool(200, lambda number, _: LOG if number < 3 else FULL)
    assert played(evaluation, 10) == {number: LOG for number in range(10)}
    error = capsys.readouterr().err
    assert error.count("ran out of memory (OutOfMemoryError: CUDA out of memory.)") == 7
    assert error.count("it is run again") == 7
    assert [worker.number for worker in evaluation.workers] == [0, 1, 2]
    assert played(evaluation, 10) == {number: LOG for number in range(10)}
    assert capsys.readouterr().err == ""


def test_an_episode_without_memory_for_a_single_process_is_left_out(pool):
    answers = played(pool(2, lambda _, message: FULL if message["episode"] == 1 else LOG), 3)
    assert answers[0] == answers[2] == LOG
    assert answers[1]["died"] and "ran out of memory" in answers[1]["lost"]


def test_as_many_workers_are_started_as_the_memory_allows(monkeypatch):
    monkeypatch.setattr(machine, "machine_memory", lambda: 20 * GIB)
    assert [workers.most_workers(cores) for cores in (217, 4, 0)] == [10, 4, 1]
    monkeypatch.setattr(machine, "machine_memory", lambda: GIB)
    assert workers.most_workers(4) == 1


@pytest.mark.timeout(60)
def test_an_ended_process_is_noticed_whose_simulator_lives_on(tmp_path, monkeypatch):
    """That has inherited the connection; it is ended as well."""
    program, file = tmp_path / "python", tmp_path / "pids"
    program.write_text(f"#!/bin/sh\nsleep 300 &\necho $! >> {file}\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(workers.sys, "executable", str(program))
    with open(tmp_path / "log", "wb") as log:
        answers = played(Pool(1, [], log, 600.0), 1)
    assert "ended with exit code 3" in answers[0]["lost"]
    simulators = [int(line) for line in file.read_text().split()]
    assert len(simulators) == 2, "an episode is tried twice"
    wait_for(lambda: not any(map(is_running, simulators)))


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
