"""The launcher's variables: what counts as a launch (tests/bad_input: contradictions)."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from robomimic_ddp.config import env, launch_env, machine
from robomimic_ddp.config.launch_env import LaunchEnv, read_launch_env
from robomimic_ddp.distributed.entry_point import entry_point
from robomimic_ddp.errors import LaunchError
from tests.hosts import run

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


@pytest.mark.parametrize("kept, attempt", [("True", 2), ("False", 0)])
def test_ranks_that_start_again_have_other_keys_where_the_store_is_kept(kept, attempt):
    environ = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": kept}
    launch = read_launch_env(environ)
    assert (launch.attempt, launch.keeps_store) == (attempt, kept == "True")


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


def test_tasks_of_an_array_are_numbered_from_0():
    def task(number, count, launch=None):
        names = {"ID": number, "COUNT": count, "MIN": 10, "STEP": 5}
        environ = {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in names.items()}
        return launch_env.task_of_job(launch or LaunchEnv(), environ)

    assert launch_env.task_of_job(LaunchEnv(rank=1, world_size=4), {}) == (1, 4)
    assert [task(number, 3) for number in (10, 15, 20)] == [(0, 3), (1, 3), (2, 3)]
    assert task(15, 3, LaunchEnv(rank=1, world_size=4)) == (5, 12)
    with pytest.raises(LaunchError, match="TASK_ID=25 does not fit an array of 3 tasks from 10"):
        task(25, 3)


def test_options_are_collected_in_lower_case():
    launch = read_launch_env(
        {"ROBOMIMIC_DDP_LR_SCALING": "sqrt", "ROBOMIMIC_DDP_MODE": "dp", "OTHER": "x"}
    )
    assert launch.option_texts == {"lr_scaling": "sqrt", "mode": "dp"}


def test_memory_of_the_process_and_of_the_machine():
    assert 0 < machine.peak_memory() < machine.machine_memory()


@pytest.fixture
def control_groups(tmp_path, monkeypatch):
    """Write /proc/self/cgroup, and files below /sys/fs/cgroup."""
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "own_cores", lambda: tuple(range(16)))

    def write(own: str, **texts: str) -> None:
        (tmp_path / "own").write_text(own)
        shutil.rmtree(tmp_path / "groups", ignore_errors=True)
        for name, text in texts.items():
            file = tmp_path / "groups" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    return write


SLURM = "system.slice/slurmstepd.scope/job_7"


def test_a_limit_of_the_job_inside_the_machine_or_container(control_groups):
    own = f"0::/{SLURM}/step_0/user/task_0\n"
    limits = {f"{SLURM}/step_0/memory.max": "max", f"{SLURM}/step_0/cpu.max": "max 100000"}
    job = {f"{SLURM}/memory.max": str(2**20), f"{SLURM}/cpu.max": "300000 100000"}
    control_groups(own, **limits, **job, **{"memory.max": str(2**30), "cpu.max": "400000 100000"})
    assert (machine.machine_memory(), machine.usable_cores()) == (2**20, 3)
    assert machine.share_of_cores(range(16), [range(16)] * 2) == 1, "of the job's three"
    control_groups(own, **job, **{"memory.max": str(2**19), "cpu.max": "200000 100000"})
    assert (machine.machine_memory(), machine.usable_cores()) == (2**19, 2), "the container's"
    control_groups("0::/system.slice/job_8\n", **job)
    assert machine.machine_memory() > 2**20 and machine.usable_cores() == 16, "another job's"
    assert machine.share_of_cores(range(16), [range(16)] * 2) == 8
    control_groups("0::/\n", **{"cpu.max": "50000 100000"})
    assert machine.usable_cores() == 1, "half a core"


def test_a_limit_of_the_job_in_version_1(control_groups):
    own = "5:cpuacct,cpu:/uid_1/job_7\n4:memory:/uid_1/job_7/step_0\n1:name=systemd:/\n0::/\n"
    cpu = {"cpu.cfs_quota_us": "500000", "cpu.cfs_period_us": "100000"}
    limits = {f"cpu/uid_1/job_7/{name}": text for name, text in cpu.items()}
    limits |= {"memory/uid_1/job_7/memory.limit_in_bytes": str(2**20)}
    limits |= {"memory/memory.limit_in_bytes": str(2**62), "cpu/cpu.cfs_quota_us": "-1"}
    control_groups(own, **limits)
    assert (machine.machine_memory(), machine.usable_cores()) == (2**20, 5)


def test_a_launcher_that_does_not_tell_the_size_of_a_node():
    """All ranks on this one would be wrong on several nodes: they are counted later."""
    environ = {name: text for name, text in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}
    launch = read_launch_env(environ)
    assert not launch.tells_node and launch.local_world_size == 2
    assert read_launch_env(TORCHRUN).tells_node


@pytest.mark.parametrize(
    "visible, gpu, number",
    [(None, 1, "1"), ("2,5", 1, "5"), ("GPU-aa,GPU-bb", 1, None), ("2", 1, None)],
)
def test_simulators_render_on_the_ranks_gpu(visible, gpu, number, monkeypatch):
    names = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with env.rendering_on(gpu):
        assert [os.environ.get(name) for name in names] == [number] * 2
    assert not set(names) & set(os.environ)
    monkeypatch.setenv(names[0], "7")
    with env.rendering_on(gpu):
        assert os.environ[names[0]] == "7", "the user's choice"
    assert os.environ[names[0]] == "7"


@pytest.mark.parametrize(
    ("gpu", "given", "libraries", "expected"),
    [
        ("3", {}, {"EGL", "OSMesa"}, ("egl", "3")),
        ("", {}, {"EGL", "OSMesa"}, ("osmesa", None)),
        ("", {}, {"EGL"}, ("egl", None)),
        ("", {}, set(), (None, None)),  # `import mujoco` would fail by either
        ("3", {"DISPLAY": ":0"}, {"EGL"}, (None, "3")),
        ("3", {"MUJOCO_GL": "osmesa", "MUJOCO_EGL_DEVICE_ID": "1"}, {"EGL"}, ("osmesa", "1")),
    ],
)
def test_a_simulator_renders_off_screen_on_its_gpu(gpu, given, libraries, expected, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: name in libraries)
    variables = env.simulator_environment(gpu)
    names = ("MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID")
    assert tuple(map(variables.get, names)) == expected
    assert variables["CUDA_VISIBLE_DEVICES"] == gpu


TRAINS = """
from robomimic_ddp.distributed.entry_point import entry_point
entry_point(lambda: print('trains'))()
"""
CHECKS = """
from robomimic_ddp.config import launch_env
launch_env.require_all_nodes(launch_env.read_launch_env())
print('trains')
"""


@pytest.mark.parametrize(
    "rank, flags, is_refused",
    [(TRAINS, ["--nnodes", "2"], True), (CHECKS, ["--nnodes=1:2"], False)],
)
def test_ranks_refuse_to_start_on_fewer_nodes_than_torchrun_was_told(rank, flags, is_refused):
    """torchrun itself starts them where a node's clock is behind. All nodes: tests/nodes."""
    torchrun = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    )
    added = {name: text for name, text in TORCHRUN.items() if name != "TORCHELASTIC_RESTART_COUNT"}
    added |= {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    done = run(None, sys.executable, "-c", torchrun, rank, *flags, added=added)
    assert done.returncode == (1 if is_refused else 0), done
    assert ("trains" in done.stdout) != is_refused
    assert ("torchrun has started 1 node(s) and expected 2" in done.stderr) == is_refused


LAUNCHER = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("rank", "asked", "seen"),
    [("0", "offline", "offline"), ("1", None, "disabled")],
)
def test_a_hosts_own_wandb_logger_starts_no_run_on_other_ranks(rank, asked, seen, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    texts = {**LAUNCHER, "RANK": rank, "LOCAL_RANK": rank, "WANDB_MODE": asked}
    for name, text in texts.items():
        if text is not None:
            monkeypatch.setenv(name, text)
    assert entry_point(lambda: os.environ["WANDB_MODE"])() == seen
    assert os.environ.get("WANDB_MODE") == asked
