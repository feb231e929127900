"""The demo passes what stops it on to what it has started, and resumes its training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from robomimic_ddp.checkpoint import STATE
from scripts.demo.job import Job
from tests.hosts import ROOT, environment
from tests.processes import wait_for

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
from scripts.demo.job import Job, exit_code_of
root = pathlib.Path("root")
job = Job(root, 2, {"data": "writes data", "training": ""})
sys.exit(exit_code_of(root, lambda: job.step("data", lambda: job.python("waits"))))
"""


def test_a_signal_reaches_the_training_and_is_waited_for(tmp_path: Path) -> None:
    number = signal.SIGTERM
    (tmp_path / "waits.py").write_text(WAITS)
    command = [sys.executable, "-c", DEMO]
    variables = {**environment(None), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    pipe = subprocess.PIPE
    demo = subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=pipe, text=True)
    wait_for((tmp_path / "ready").exists)
    os.kill(demo.pid, number)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number, errors
    assert (tmp_path / "heard").read_text() == str(int(number))
    assert "the demo was stopped at: data. The same command keeps" in errors
    assert "does the data again, then: training." in errors and "Traceback" not in errors


def test_only_the_same_training_is_resumed_and_a_finished_one_is_kept(tmp_path: Path) -> None:
    """The same config and arguments on as many ranks, where it had saved a state."""
    config, run = tmp_path / "config.json", tmp_path / "training" / "test" / "run"
    calls: list[tuple[bool, bool]] = []

    def train(settings: str, leaves: dict[str, str], ranks: int = 2, text: str = "{}") -> None:
        """Leaves these files in the run; notes whether it was resumed, and had its folder."""
        job = Job(tmp_path, ranks)

        def torchrun(_: str, *words: str) -> None:
            calls.append(("--resume" in words, run.exists()))
            assert f"--nproc_per_node={ranks}" in words and settings in words
            run.mkdir(parents=True, exist_ok=True)
            for name, content in leaves.items():
                (run / name).write_text(content)

        job.python = torchrun
        config.write_text(text)
        assert job.train("training", "host.train", config, [settings], "--resume") == run

    begun = {"ddp.json": "{}"}
    saved = {**begun, STATE: ""}
    ended = {"ddp.json": '{"outcome": {}}', STATE: ""}
    train("seed=1", begun)
    train("seed=1", saved)  # no state yet: begins again
    train("seed=1", saved)
    train("seed=1", ended)
    assert calls == [(False, False), (False, False), (True, True), (True, True)]
    train("seed=1", {})  # it has finished
    assert len(calls) == 4
    train("seed=2", ended)
    train("seed=2", ended, ranks=3)
    train("seed=2", ended, ranks=3, text='{"other": 1}')
    assert calls[4:] == [(False, False)] * 3
