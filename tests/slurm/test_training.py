"""Jobs of a real Slurm of two nodes are interrupted, and end as the run that nothing interrupts.

A low-dim BC policy, 24 epochs of three steps; the first start of a job is slow, so that it is still
training when the test interrupts it (tests/slurm/paced_train.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.checkpoint import STATE
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.commands.sweep import new, space
from tests.configs import make_config, merged, write_config
from tests.e2e.docs.pages import DOCS
from tests.hosts import ROOT, Host, require_clean, run, torchrun
from tests.runs import newest, run_directory, state_differences
from tests.slurm.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]
MODULE = "tests.slurm.paced_train"
EPOCHS = 24
SECONDS = 240.0


@pytest.fixture(scope="module")
def config(low_dim_dataset: Path) -> Callable[..., Path]:
    """`config(folder, **changes)`: the file of a run below `folder`."""

    def make(folder: Path, **changes: Any) -> Path:
        folder.mkdir(exist_ok=True)
        options = {"save_seconds": 0, "lr_scaling": "none"}
        changes = merged({"train": {"num_epochs": EPOCHS}, "ddp": options}, changes)
        return write_config(
            folder / "config.json", make_config("bc", low_dim_dataset, folder / "runs", changes)
        )

    return make


@pytest.fixture(scope="module")
def uninterrupted(
    config: Any, host_copy: Host, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], dict[str, Any]]:
    """`uninterrupted(ranks)`: the last state of a run on this machine, without Slurm."""
    states: dict[int, dict[str, Any]] = {}

    def train(ranks: int) -> dict[str, Any]:
        if ranks not in states:
            folder = tmp_path_factory.mktemp(f"uninterrupted-{ranks}")
            require_clean(torchrun(host_copy, MODULE, "--config", config(folder), ranks=ranks))
            states[ranks] = newest(folder)
            assert states[ranks]["epoch"] == EPOCHS
        return states[ranks]

    return train


def train(cluster: Cluster, config: Path, **variables: Any) -> str:
    """Submits scripts/train_slurm.sbatch; returns the job's number when a test may interrupt it."""
    script = ROOT / "scripts" / "train_slurm.sbatch"
    words = ["--config", config, "--gpus", "1", "--module", MODULE]
    few = ("--gpus-per-node=0", "--cpus-per-task=1")
    return submit(cluster, config, *few, script, *words, **variables)


def submit(cluster: Cluster, config: Path, *words: object, **variables: Any) -> str:
    out = f"--output={config.parent}/out"
    job = cluster.ask("sbatch", "--parsable", "--time=10", out, *words, **variables)
    cluster.until((config.parent / "reached").exists, SECONDS, "fifth step")
    return job


def require_resumed(cluster: Cluster, job: str, config: Path, whole: dict[str, Any]) -> None:
    """Waits for the job's end. It has been in the queue twice, and trained each epoch once, to the
    same bits.
    """
    require_ended(cluster, job, config, "COMPLETED", restarts=1)
    require_whole(config, whole)


def require_ended(cluster: Cluster, job: str, config: Path, state: str, restarts: int = 0) -> None:
    cluster.until(lambda: not cluster.ask("squeue", "-h"), SECONDS, "empty queue")
    told = cluster.job(job)
    out = (config.parent / "out").read_text()[-6000:]
    assert (told["JobState"], told["Restarts"]) == (state, str(restarts)), out


def require_whole(config: Path, whole: dict[str, Any]) -> None:
    assert state_differences(newest(config.parent), whole, ("/exp_avg", "/random/torch")) == []
    assert trained(config) == list(range(1, EPOCHS + 1))


def trained(config: Path) -> list[int]:
    lines = (run_directory(config.parent / "runs") / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch"] for line in lines if '"train"' in line]


def shorten(cluster: Cluster, job: str) -> None:
    """The time limit is less than two minutes away: Slurm, which looks every 30 s, warns."""
    hours, minutes, _ = cluster.job(job)["RunTime"].split(":")
    limit = 60 * int(hours) + int(minutes) + 2
    cluster.ask("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")
    cluster.until(lambda: cluster.job(job)["Restarts"] == "1", SECONDS, "requeued job")
    cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=10")


def preempt(cluster: Cluster, job: str) -> None:
    words = ["--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
    cluster.ask("sbatch", *words, "--wrap=sleep 1")


def lose_a_node(cluster: Cluster, job: str) -> None:
    cluster.cut_power("n2")
    cluster.until(lambda: cluster.job(job)["JobState"] == "PENDING", SECONDS, "requeued job")
    assert cluster.states()[1].startswith("down")
    cluster.boot("n2")


INTERRUPTIONS: dict[str, Callable[[Cluster, str], Any]] = {
    "time limit": shorten,
    "USR1": lambda cluster, job: cluster.ask("scancel", "--signal=USR1", job),
    "requeue": lambda cluster, job: cluster.ask("scontrol", "requeue", job),
    "preemption": preempt,
    "dead node": lose_a_node,
}


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_an_interrupted_job_resumes(
    name: str, cluster: Cluster, config: Any, uninterrupted: Any, tmp_path: Path
) -> None:
    file = config(tmp_path)
    job = train(cluster, file)
    INTERRUPTIONS[name](cluster, job)
    require_resumed(cluster, job, file, uninterrupted(2))


def test_a_cancelled_job_stays_out_of_the_queue_and_another_one_resumes_its_run(
    cluster: Cluster, config: Any, uninterrupted: Any, tmp_path: Path
) -> None:
    """The first has no HOME; the other's is no folder."""
    file = config(tmp_path)
    job = train(cluster, file, without=("HOME",))
    cluster.ask("scancel", job)
    require_ended(cluster, job, file, "CANCELLED")
    assert (run_directory(tmp_path / "runs") / "requeue").exists()
    assert len(trained(file)) < EPOCHS
    job = train(cluster, file, HOME="/nowhere", ROBOMIMIC_DDP_RESUME="auto")
    require_ended(cluster, job, file, "COMPLETED")
    require_whole(file, uninterrupted(2))


def test_one_task_for_each_rank(
    cluster: Cluster, config: Any, uninterrupted: Any, tmp_path: Path
) -> None:
    """Four ranks, started by srun as docs/nodes.md has it."""
    file = config(tmp_path)
    names = {"--config cfg.json": f"--config {file}", "robomimic.scripts.train": MODULE}
    script = documented("nodes.md", tmp_path, names)
    few = ("--ntasks-per-node=2", "--gpus-per-task=0", "--cpus-per-task=1")
    job = submit(cluster, file, *few, script)
    cluster.ask("scancel", "--signal=USR1", job)
    require_resumed(cluster, job, file, uninterrupted(4))


def test_a_sweep_as_an_array_of_jobs(
    cluster: Cluster, config: Any, host_copy: Host, tmp_path: Path
) -> None:
    """Two tasks train a trial each, as docs/sweep.md has it. Both are stopped and requeued."""
    file = config(tmp_path, train={"num_epochs": 100})
    sweep, whole = (
        new.make(tmp_path / name, file, space.parse(["train.seed=1,2"]))
        for name in ("sweep", "whole")
    )
    script = documented("sweep.md", tmp_path, {"/shared/DIR": str(sweep.directory)})
    few = ("--array=0-1", "--gpus-per-node=0", "--cpus-per-task=1", f"--output={tmp_path}/out")
    job = cluster.ask("sbatch", "--parsable", "--time=10", *few, script)

    def both_train() -> bool:
        return all(len(trial.curve()) >= 2 for trial in sweep.trials())

    cluster.until(both_train, SECONDS, "second epoch of both trials")
    cluster.ask("scancel", "--signal=USR1", job)
    require_ended(cluster, f"{job}_0", file, "COMPLETED", restarts=1)
    require_ended(cluster, f"{job}_1", file, "COMPLETED", restarts=1)
    require_clean(
        run(host_copy, sys.executable, "-m", "robomimic_ddp", "sweep", "run", whole.directory)
    )
    for trial, other in zip(sweep.trials(), whole.trials()):
        assert (trial.state, trial.value) == ("complete", other.value)
        states = [read_file(entry.run() / STATE) for entry in (trial, other)]
        assert state_differences(*states, ("/exp_avg",)) == []


def documented(page: str, folder: Path, names: dict[str, str]) -> Path:
    """The script for sbatch in a page, with other names in it."""
    (script,) = re.findall(
        r"^    (#!/usr/bin/env bash\n(?:    .*\n)+)", (DOCS / page).read_text(), re.M
    )
    script = script.replace("\n    ", "\n")
    for old, new_name in names.items():
        assert script.count(old) == 1, (page, old)
        script = script.replace(old, new_name)
    path = folder / "script.sh"
    path.write_text(script)
    return path
