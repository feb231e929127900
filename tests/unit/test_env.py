"""The launcher's variables: what counts as a launch (tests/bad_input: contradictions)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from robomimic_ddp import env
from robomimic_ddp.env import read_launch_env

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_plain_python_is_rank_0_of_1():
    launch = read_launch_env({"PATH": "/bin"})
    assert not launch.launched and (launch.rank, launch.world_size, launch.local_rank) == (0, 1, 0)


def test_torchrun_variables_are_read_and_left_alone():
    environ = dict(TORCHRUN)
    launch = read_launch_env(environ)
    assert launch.launched and launch.elastic and launch.restart_count == 2
    assert (launch.rank, launch.world_size, launch.local_rank, launch.local_world_size) == (
        5,
        8,
        1,
        4,
    )
    assert environ == TORCHRUN


def test_slurm_variables_alone_are_no_launch():
    launch = read_launch_env({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3"})
    assert not launch.launched and launch.world_size == 1


def test_options_are_collected_in_lower_case():
    launch = read_launch_env(
        {"ROBOMIMIC_DDP_LR_SCALING": "sqrt", "ROBOMIMIC_DDP_MODE": "dp", "OTHER": "x"}
    )
    assert launch.option_texts == {"lr_scaling": "sqrt", "mode": "dp"}


def test_the_process_environment_is_the_default(monkeypatch):
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROBOMIMIC_DDP_BATCH", "global")
    assert read_launch_env().option_texts["batch"] == "global"


def test_memory_of_the_process_and_of_the_machine(tmp_path, monkeypatch):
    machine, held = env.machine_memory(), env.resident_memory()
    assert 0 < held < machine and env.peak_memory() < machine
    limits = {"limit": str(held), "none": "max", "huge": str(2**62)}
    files = []
    for name, text in limits.items():
        (tmp_path / name).write_text(text + "\n")
        files.append(str(tmp_path / name))
    monkeypatch.setattr(env, "_MEMORY_LIMITS", (*files, str(tmp_path / "absent")))
    assert env.machine_memory() == held, "a container's limit"
    monkeypatch.setattr(env, "_MEMORY_LIMITS", files[1:])
    assert env.machine_memory() >= machine


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux' /proc")
@pytest.mark.parametrize(
    ("own", "launchers", "elastic", "share"),
    [
        (range(64), range(64), True, 16),  # the whole machine
        (range(16), range(16), True, 4),  # a container's cores, or those of a SLURM job
        (range(8, 12), range(16), True, 4),  # bound rank by rank, in a container
        (range(16), range(64), False, 16),  # a SLURM task for each rank
        (range(2), range(2), True, 1),
    ],
)
def test_ranks_share_the_cores_of_their_torchrun(monkeypatch, own, launchers, elastic, share):
    cores = {0: set(own), os.getppid(): set(launchers)}
    monkeypatch.setattr(os, "sched_getaffinity", cores.__getitem__, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if elastic:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert env.share_of_cores(4) == share


def test_a_thread_that_works_is_seen():
    stop = threading.Event()

    def work():
        while not stop.is_set():
            sum(range(100_000))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        # Between two looks it may wait for the interpreter; not at every one of many.
        assert any(env.has_running_threads() for _ in range(10_000))
    finally:
        stop.set()
        worker.join()
