"""Sweeps of the real host: whole, and with worker and trainings killed, to the same bits."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from robomimic_ddp.checkpoint import STATE
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.commands.sweep import space, study
from tests.hosts import Host, environment, run
from tests.runs import checkpoint_differences, state_differences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def make(directory: Path, config: Path, *words: str) -> study.Sweep:
    study.new(directory, config, space.parse(words))
    return study.Sweep(directory)


def start(host: Host, directory: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "robomimic_ddp", "sweep", "run", str(directory), *more]
    with open(directory / "worker.txt", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment(host))


def finish(host: Host, directory: Path, *more: str) -> str:
    command = ("-m", "robomimic_ddp", "sweep", "run", directory, *more)
    result = run(host, sys.executable, *command, timeout=600.0)
    logs = "".join(path.read_text()[-3000:] for path in (directory / "logs").iterdir())
    assert result.returncode == 0 and not result.leftovers, f"{result}\n{logs}"
    return result.stdout


def kill(*processes: psutil.Process) -> None:
    for process in processes:
        with_suppressed(process.kill)
    psutil.wait_procs(processes, timeout=10)


def with_suppressed(call: Callable[[], Any]) -> None:
    try:
        call()
    except psutil.NoSuchProcess:
        pass


def require_trained_once(sweep: study.Sweep, epochs: int) -> None:
    for entry in sweep.entries():
        assert entry.state == "complete", entry
        assert len([one for one in entry.folder.iterdir() if (one / STATE).exists()]) == 1
        lines = [json.loads(line) for line in (entry.run() / "history.jsonl").open()]
        for phase in ("train", "valid"):
            reported = [line["epoch"] for line in lines if line["phase"] == phase]
            assert reported == list(range(1, epochs + 1)), entry.name


def require_same(one: study.Sweep, two: study.Sweep) -> None:
    for first, second in zip(one.entries(), two.entries()):
        assert (first.name, first.value) == (second.name, second.value)
        states = [read_file(entry.run() / STATE) for entry in (first, second)]
        assert state_differences(*states) == []
        assert checkpoint_differences(first.run() / "last.pth", second.run() / "last.pth") == []


WORDS = ("train.seed=1", "ddp.preset=safe")
TWO_RANKS = ("--ranks-per-trial", "2")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, four_epochs: Callable[..., Path]) -> Path:
    return four_epochs(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, host_copy: Host, config: Path
) -> Callable[..., study.Sweep]:
    """The sweep that nothing interrupts."""
    directory = tmp_path_factory.mktemp("whole") / "sweep"
    sweep = make(directory, config, *WORDS)
    said = finish(host_copy, directory, *TWO_RANKS)
    assert "1 complete" in said and "begins on slot 0" in said
    require_trained_once(sweep, 4)
    return sweep


def test_worker_and_training_are_killed_in_mid_trial(
    host_copy: Host, config: Path, whole: study.Sweep, tmp_path: Path
) -> None:
    directory = tmp_path / "sweep"
    sweep = make(directory, config, *WORDS)
    worker = start(host_copy, directory, *TWO_RANKS)
    while not any(len(entry.curve("valid/Loss")) >= 2 for entry in sweep.entries()):
        assert worker.poll() is None, (directory / "worker.txt").read_text()
        time.sleep(0.01)
    trainings = psutil.Process(worker.pid).children(recursive=True)
    assert trainings
    kill(psutil.Process(worker.pid), *trainings)
    assert [entry.state for entry in sweep.entries()] == ["running"]
    said = finish(host_copy, directory, *TWO_RANKS)
    assert "resumes on slot 0" in said
    require_trained_once(sweep, 4)
    require_same(sweep, whole)
    assert all(read_file(entry.run() / STATE)["world_size"] == 2 for entry in sweep.entries())


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(20))
def test_kills_at_random_moments(
    repeat: int, host_copy: Host, config: Path, tmp_path: Path, soak: study.Sweep
) -> None:
    """Six trials on two slots; worker and trainings are killed together, or the worker alone."""
    draw = random.Random(repeat)
    sweep = make(tmp_path / "sweep", config, "train.seed=1,2,3,4,5,6", "ddp.preset=safe")
    for _ in range(3):
        worker = start(host_copy, sweep.directory, "--slots", "2")
        try:
            worker.wait(draw.uniform(3, 40))
        except subprocess.TimeoutExpired:
            process = psutil.Process(worker.pid)
            trainings = process.children(recursive=True)
            kill(process, *(trainings if draw.random() < 0.7 else ()))
            worker.wait()
    finish(host_copy, sweep.directory, "--slots", "2")
    require_trained_once(sweep, 4)
    require_same(sweep, soak)


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory, host_copy: Host, config: Path) -> study.Sweep:
    directory = tmp_path_factory.mktemp("soak") / "sweep"
    sweep = make(directory, config, "train.seed=1,2,3,4,5,6", "ddp.preset=safe")
    finish(host_copy, directory, "--slots", "2")
    return sweep


@pytest.mark.slow
def test_ranks_in_a_trial_and_a_stop(host_copy: Host, config: Path, tmp_path: Path) -> None:
    """Two ranks in each trial; SIGTERM to the worker stops them and saves."""
    sweep = make(tmp_path / "sweep", config, "train.seed=1", "train.num_epochs=12")
    worker = start(host_copy, sweep.directory, *TWO_RANKS)
    (entry,) = sweep.entries()
    while len(entry.curve("train/Loss")) < 2:
        assert worker.poll() is None, (sweep.directory / "worker.txt").read_text()
        time.sleep(0.01)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(120) == 75, (sweep.directory / "worker.txt").read_text()
    assert (entry.run() / "requeue").exists() and entry.curve("train/Loss").keys() != {12}
    finish(host_copy, sweep.directory, *TWO_RANKS)
    require_trained_once(sweep, 12)
    assert read_file(entry.run() / STATE)["world_size"] == 2
