"""The demo passes what stops it on to what it has started, and resumes its training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robomimic_ddp.demo.job import Job
from tests.hosts import ROOT, environment

WAITS = """
import pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path("heard").write_text(str(number))
    sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)
pathlib.Path("ready").touch()
time.sleep(60)
"""
DEMO = """
import pathlib, sys
from robomimic_ddp.demo.job import Job, exit_code_of
sys.exit(exit_code_of(lambda: Job(pathlib.Path("root")).python("waits")))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_training_and_is_waited_for(number, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    command = [sys.executable, "-c", DEMO]
    variables = {**environment(None), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    pipe = subprocess.PIPE
    demo = subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=pipe, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(demo.pid, number)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number, errors
    assert (tmp_path / "heard").read_text() == str(int(number))
    assert "the same command resumes it" in errors and "Traceback" not in errors


def test_only_the_same_training_is_resumed(tmp_path: Path) -> None:
    """Of the same inputs, and where it had begun a run."""
    job = Job(tmp_path)

    def cut_short() -> None:
        found.append(job.training_folder("output"))
        (tmp_path / "output/test/run").mkdir(parents=True, exist_ok=True)
        (tmp_path / "output/test/run/ddp.json").touch()
        raise KeyboardInterrupt

    found: list = []
    for inputs in ({"seed": 1}, {"seed": 1}, {"seed": 2}):
        with pytest.raises(KeyboardInterrupt):
            job.step("training", inputs, cut_short)
    assert [resumes for _, resumes in found] == [False, True, False]
