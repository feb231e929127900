"""The command that resumes a run, as a user would have to type it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from robomimic_ddp.config import env, resume_command
from robomimic_ddp.config.launch_env import LaunchEnv
from tests.hosts import ROOT

WORDS = ["/env/bin/python3", "-u", "-m", "robomimic.scripts.train", "--config", "my cfg.json"]
TORCHRUN = {"launched": True, "elastic": True, "world_size": 4, "local_world_size": 4}


@pytest.mark.parametrize(
    ("launch", "words", "expected"),
    [
        ({}, WORDS, "python -m robomimic.scripts.train --config 'my cfg.json'"),
        (
            TORCHRUN,
            [*WORDS, "ddp.resume=false"],
            "torchrun --standalone --nproc_per_node=4 -m robomimic.scripts.train "
            "--config 'my cfg.json'",
        ),
        (
            TORCHRUN,
            ["python", "-u", "train.py"],
            "torchrun --standalone --nproc_per_node=4 train.py",
        ),
    ],
)
def test_one_node(launch, words, expected):
    assert (
        resume_command.build(LaunchEnv(**launch), words) == f"ROBOMIMIC_DDP_RESUME=true {expected}"
    )


def test_options_in_the_environment_are_repeated():
    launch = LaunchEnv(option_texts={"resume": "auto", "lr_scaling": "sqrt"})
    expected = "ROBOMIMIC_DDP_LR_SCALING=sqrt ROBOMIMIC_DDP_RESUME=true python train.py"
    assert resume_command.build(launch, ["python", "train.py"]) == expected


SCHEDULERS = (("SLURM_JOB_ID",), ("LSB_JOBID",), ("PBS_JOBID",), ("JOB_ID", "SGE_ROOT"))


@pytest.fixture
def no_scheduler(monkeypatch):
    for name in (name for names in SCHEDULERS for name in names):
        monkeypatch.delenv(name, raising=False)


def test_what_the_user_chose_is_repeated(no_scheduler, monkeypatch):
    """Else it would train on the first GPUs, where another run may be, or ask for a network."""
    for name in env.repeated_variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5a")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("PYTHONPATH", "/my host")
    command = resume_command.build(LaunchEnv(), WORDS, env.repeated_variables())
    assert command.startswith(
        "PYTHONPATH='/my host' CUDA_VISIBLE_DEVICES=2,GPU-5a WANDB_MODE=offline "
        "ROBOMIMIC_DDP_RESUME=true python"
    )
    for name in env.repeated_variables():
        monkeypatch.setenv(name, "")
    assert env.repeated_variables() == {}


@pytest.mark.parametrize("names", SCHEDULERS)
def test_the_gpus_that_a_scheduler_chose_are_not_repeated(names, no_scheduler, monkeypatch):
    """The next job has other GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for name in names:
        assert env.repeated_variables()["CUDA_VISIBLE_DEVICES"] == "1"
        monkeypatch.setenv(name, "7")
    assert "CUDA_VISIBLE_DEVICES" not in env.repeated_variables()


def test_what_the_shell_would_not_find_is_named():
    """A host on PYTHONPATH, in an environment that is not active."""
    command = resume_command.build(
        LaunchEnv(**TORCHRUN), WORDS, {"PYTHONPATH": "/my host:/x"}, "/env/bin/python3"
    )
    assert command == (
        "PYTHONPATH='/my host:/x' ROBOMIMIC_DDP_RESUME=true /env/bin/python3 -m "
        "torch.distributed.run --standalone --nproc_per_node=4 -m robomimic.scripts.train "
        "--config 'my cfg.json'"
    )
    one = resume_command.build(LaunchEnv(), WORDS, interpreter="/env/bin/python3")
    assert one.startswith("ROBOMIMIC_DDP_RESUME=true /env/bin/python3 -m robomimic.scripts.train")


def test_from_any_folder_it_runs_what_was_run(tmp_path):
    """`python -m` looks in the folder first, and a config's path may be relative."""
    for name, text in (("my host", "ours"), ("elsewhere", "another")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(f"print({text!r}, open('cfg').read())")
        (tmp_path / name / "cfg").write_text(text)
    words = [sys.executable, "-m", "train"]
    command = resume_command.build(
        LaunchEnv(), words, {}, sys.executable, str(tmp_path / "my host")
    )
    done = subprocess.run(command, shell=True, cwd=tmp_path / "elsewhere", stdout=subprocess.PIPE)
    assert done.stdout == b"ours ours\n"


def test_a_folder_that_was_removed_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    assert env.working_folder() == str(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert env.working_folder() == ""


def test_whether_the_shell_finds_this_interpreters_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert env.missing_from_path("python")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    (tmp_path / "python").write_text("")
    (tmp_path / "python").chmod(0o755)
    assert not env.missing_from_path("python")


@pytest.mark.parametrize(
    ("launch", "words", "where"),
    [
        ({**TORCHRUN, "world_size": 8}, WORDS, " on every node"),
        ({**TORCHRUN, "elastic": False}, WORDS, ""),
        ({**TORCHRUN, "elastic": False, "world_size": 8}, WORDS, ""),
        ({}, [], ""),
        (TORCHRUN, [], ""),
    ],
)
def test_what_a_rank_cannot_know(launch, words, where):
    said = resume_command.build(LaunchEnv(**launch), words)
    assert said == f"ROBOMIMIC_DDP_RESUME=true, before the same command{where}"


def test_the_folder_that_hydra_has_left(tmp_path):
    pytest.importorskip("hydra")
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "import hydra\n"
        "from robomimic_ddp.config import env\n"
        "@hydra.main(version_base=None, config_path=None)\n"
        "def main(config):\n"
        "    print(os.getcwd(), env.working_folder(), sep='\\n')\n"
        "main()\n"
    )
    command = [sys.executable, program, "hydra.job.chdir=true"]
    said = subprocess.run(
        command,
        cwd=tmp_path,
        env=env.child_environment([str(ROOT)]),
        capture_output=True,
        text=True,
    ).stdout.split()
    assert said[0] != said[1] == str(tmp_path), said
