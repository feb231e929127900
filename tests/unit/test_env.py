"""The launcher's variables: what counts as a launch (tests/bad_input: contradictions)."""

from __future__ import annotations

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
