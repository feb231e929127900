"""Sweeps of the real host: with workers and trainings killed to the same bits as without."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from robomimic_ddp.checkpoint import STATE
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.commands.sweep import new, space, study
from robomimic_ddp.monitoring.records.run_files import REQUEUE
from tests.hosts import Host, environment, run
from tests.runs import checkpoint_differences, state_differences

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
TWO_RANKS = ("--ranks", "2")


def make(directory: Path, config: Path, *words: str) -> study.Sweep:
    return new.make(directory, config, space.parse(words))


def start(host: Host, directory: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "robomimic_ddp", "sweep", "run", str(directory), *words]
    with open(directory / "worker.txt", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment(host))


def finish(host: Host, directory: Path, *words: str) -> str:
    command = ("-m", "robomimic_ddp", "sweep", "run", directory, *words)
    result = run(host, sys.executable, *command, timeout=600.0)
    logs = "".join(path.read_text()[-3000:] for path in (directory / "logs").iterdir())
    assert result.returncode == 0 and not result.leftovers, f"{result}\n{logs}"
    return result.stdout


def kill(processes: Iterable[psutil.Process]) -> None:
    processes = list(processes)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def require_trained_once(sweep: study.Sweep, epochs: int) -> None:
    for entry in sweep.trials():
        assert entry.state == "complete", entry
        assert len([run for run in entry.folder.iterdir() if (run / STATE).exists()]) == 1
        lines = [json.loads(line) for line in (entry.run() / "history.jsonl").open()]
        for phase in ("train", "valid"):
            reported = [line["epoch"] for line in lines if line["phase"] == phase]
            assert reported == list(range(1, epochs + 1)), entry.name


def require_same(sweep: study.Sweep, other: study.Sweep) -> None:
    for first, second in zip(sweep.trials(), other.trials()):
        assert (first.name, first.value) == (second.name, second.value)
        states = [read_file(entry.run() / STATE) for entry in (first, second)]
        assert state_differences(*states) == []
        assert checkpoint_differences(first.run() / "last.pth", second.run() / "last.pth") == []


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, four_epochs: Callable[..., Path]) -> Path:
    return four_epochs(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory, host_copy: Host, config: Path) -> study.Sweep:
    directory = tmp_path_factory.mktemp("soak") / "sweep"
    sweep = make(directory, config, "train.seed=1,2,3,4,5,6", "ddp.preset=safe")
    finish(host_copy, directory)
    return sweep


@pytest.mark.parametrize("repeat", range(8))
def test_kills_at_random_moments(
    repeat: int, host_copy: Host, config: Path, tmp_path: Path, soak: study.Sweep
) -> None:
    """Six trials and two workers; each worker is killed with its trainings, or alone."""
    draw = random.Random(repeat)
    sweep = make(tmp_path / "sweep", config, "train.seed=1,2,3,4,5,6", "ddp.preset=safe")
    for _ in range(3):
        workers = [start(host_copy, sweep.directory) for _ in range(2)]
        for worker in workers:
            try:
                worker.wait(draw.uniform(3, 20))
            except subprocess.TimeoutExpired:
                process = psutil.Process(worker.pid)
                trainings = process.children(recursive=True)
                kill([process, *(trainings if draw.random() < 0.7 else ())])
                worker.wait()
    finish(host_copy, sweep.directory)
    require_trained_once(sweep, 4)
    require_same(sweep, soak)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_in_a_trial_and_a_stop(
    number: signal.Signals, host_copy: Host, config: Path, tmp_path: Path
) -> None:
    """Both ranks of the worker's trial save and stop, also where it was killed."""
    sweep = make(tmp_path / "sweep", config, "train.seed=1", "train.num_epochs=12")
    worker = start(host_copy, sweep.directory, *TWO_RANKS)
    (entry,) = sweep.trials()
    while len(sweep.trials()[0].curve()) < 2:
        assert worker.poll() is None, (sweep.directory / "worker.txt").read_text()
        time.sleep(0.01)
    trainings = psutil.Process(worker.pid).children(recursive=True)
    worker.send_signal(number)
    code = 75 if number == signal.SIGTERM else -number
    assert worker.wait(120) == code, (sweep.directory / "worker.txt").read_text()
    assert not psutil.wait_procs(trainings, 60)[1]
    assert (entry.run() / REQUEUE).exists() and entry.curve().keys() != {12}
    finish(host_copy, sweep.directory, *TWO_RANKS)
    require_trained_once(sweep, 12)
    assert read_file(entry.run() / STATE)["world_size"] == 2
