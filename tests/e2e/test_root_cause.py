"""The rank that failed first is the root cause, though others end within milliseconds of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from robomimic_ddp.distributed import rendezvous
from tests.hosts import ROOT, environment, torchrun
from tests.processes import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.planted_fault, pytest.mark.timeout(300)]


def root_cause_of(result) -> str:
    assert result.returncode != 0 and not result.leftovers, result
    return result.stderr.split("Root Cause")[1]


def require_no_other_failure(result) -> None:
    """torchrun lists the root cause alone, or a rank that it ended itself before it had noticed."""
    others = result.stderr.partition("Failures:")[2].partition("Root Cause")[0]
    assert "<NO_OTHER_FAILURES>" in others or "exitcode  : -15" in others, result


def test_the_failing_rank_is_named_with_its_traceback():
    """A race of tenths of a second before."""
    result = torchrun(None, "tests.e2e.entries.racing", "fails", "1")
    assert "rank      : 1" in root_cause_of(result)
    message = "rank 1: error: ValueError: planted on purpose\n  Traceback (most recent call last)"
    assert message in root_cause_of(result)
    require_no_other_failure(result)
    # One line, or none where torchrun ended rank 0 before it noticed; never a second traceback.
    assert result.stderr.count("rank 0: stopped, because rank 1 failed") <= 1
    assert "Connection closed by peer" not in root_cause_of(result)


def test_what_every_rank_meets_is_shown_whole_once():
    """The first that says so shows its traceback, another one line."""
    result = torchrun(None, "tests.e2e.entries.racing", "all fail", "1")
    assert "planted on purpose" in root_cause_of(result)
    require_no_other_failure(result)
    shown = result.stderr.partition("=====")[0]
    whole = "error: ValueError: planted on purpose\n"
    assert shown.count(f"rank 0: {whole}") + shown.count(f"rank 1: {whole}") == 1, result
    assert shown.count("failed too (error: ValueError: planted") <= 1, result
    assert result.stderr.count("in main\n      raise ValueError") == 1, result


def test_what_every_rank_meets_is_shown_whole_once_where_rank_0_has_the_store():
    """As under srun, or torchrun of torch 2.0: a store that ended with rank 0 could not tell the
    other that it is not the first.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meets = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.e2e.entries.racing", "all fail", "0", "0.3"]
    ranks = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment(None), **meets, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    first, second = (rank.communicate(timeout=120)[1] for rank in ranks)
    assert all(rank.returncode == 1 for rank in ranks)
    assert first.count("rank 0: error: ValueError: planted on purpose\n") == 1, first
    assert "rank 1: failed too (error: ValueError: planted on purpose)" in second, second
    assert "rank 1: error" not in second, second


@pytest.mark.parametrize(
    "what, words",
    [
        ("connection", "ConnectionResetError: wandb upload: Connection reset by peer"),
        ("exits", "this rank leaves"),
    ],
)
def test_failures_that_look_like_something_else_are_recorded_too(what, words):
    result = torchrun(None, "tests.e2e.entries.racing", what, "1")
    assert "rank      : 1" in root_cause_of(result)
    assert words in root_cause_of(result)
    assert "rank 1: stopped" not in result.stderr


@pytest.mark.parametrize("moment", ["early", pytest.param("late", marks=pytest.mark.slow)])
def test_workers_end_when_torchrun_was_killed(moment):
    """kill -9: the agent cannot end its workers any more, so they must notice. Early: while they
    import, before anybody looks at the agent.
    """
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command = [*launch, *rendezvous.on_this_machine(), "-m", "tests.e2e.entries.waiting", moment]
    agent = subprocess.Popen(
        command, cwd=ROOT, env=environment(None), stdout=subprocess.PIPE, text=True
    )
    workers = [int(agent.stdout.readline()) for _ in range(2)]
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in workers), 30)
    with agent.stdout:
        said = agent.stdout.read()
    assert moment == "early" or said.count("last words") == 2, said
