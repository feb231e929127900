"""A train script of IsaacLab's shape over an installed robomimic, on two ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.configs import make_config, write_config
from tests.hosts import FINISHED, ROOT, Host, Result, python, require_clean, run, torchrun
from tests.isaac_host import write_checkout
from tests.patches.support import snapshot
from tests.runs import run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


class Job:
    """A checkout, its data and config, and what its ranks have reported."""

    def __init__(self, folder: Path, dataset: Path) -> None:
        self.folder = folder
        self.script = write_checkout(folder / "checkout")
        self.data = folder / "data.hdf5"
        self.data.write_bytes(dataset.read_bytes())
        changes = {
            "experiment": {"validate": False},
            "train": {"hdf5_validation_filter_key": None},
        }
        config = make_config("bc_rnn_gmm", self.data, folder / "runs", changes)
        self.task = write_config(folder / "task.json", config)
        (folder / "reports").mkdir()

    def variables(self, host: Host) -> dict[str, str]:
        folders = (self.script.parent, self.folder / "checkout/source", host.folder, ROOT)
        paths = [str(path) for path in folders]
        return {"PYTHONPATH": os.pathsep.join(paths), "REPORTS": str(self.folder / "reports")}

    def train(self, host: Host, *words: object) -> Result:
        """Two ranks of the script, started as a module."""
        return torchrun(host, "train", "--task", self.task, *words, added=self.variables(host))

    def reports(self) -> list[str]:
        return [path.read_text() for path in sorted((self.folder / "reports").iterdir())]


@pytest.fixture
def job(tmp_path: Path, low_dim_dataset: Path) -> Job:
    return Job(tmp_path, low_dim_dataset)


def ddp(host: Host, *words: object) -> str:
    """What `robomimic-ddp` prints, where Python imports the host."""
    done = run(host, sys.executable, "-m", "robomimic_ddp", *words)
    require_clean(done)
    return done.stdout


@pytest.fixture(scope="module")
def applied(
    host_copy: Host, low_dim_dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Job, dict, str]:
    """(a job whose checkout was edited, the files before, the script after)."""
    job = Job(tmp_path_factory.mktemp("applied"), low_dim_dataset)
    checkout = job.folder / "checkout"
    before = snapshot(checkout)
    printed = ddp(host_copy, "apply", checkout)
    assert "1 file edited" in printed and "robomimic, which is patched." in printed
    return job, before, job.script.read_text()


@pytest.fixture
def edited(job: Job, applied: tuple[Job, dict, str]) -> Job:
    job.script.write_text(applied[2])
    return job


def test_applied_trained_on_two_ranks_and_reverted_to_the_byte(
    applied: tuple[Job, dict, str], host_copy: Host
) -> None:
    job, before, _ = applied
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    words = (*launcher, job.script, "--task", job.task, "--scale", "ddp.save_seconds=0")
    trained = run(None, sys.executable, *words, added=job.variables(host_copy))
    require_clean(trained)
    require_one_run(job, trained)
    ddp(host_copy, "revert", job.script)
    assert snapshot(job.folder / "checkout") == before


def require_one_run(job: Job, trained: Result) -> None:
    """Two ranks with equal weights, each with its simulator, and one run directory."""
    assert FINISHED in trained.stdout and "verified, epoch 2" in trained.stdout, trained
    for rank in range(2):
        assert f"simulator of rank {rank}: cuda:{rank}" in trained.stderr, trained
    first, second = job.reports()
    assert first == second
    assert (run_directory(job.folder / "runs") / "logs/scale.txt").read_text() == "2\n"


@pytest.mark.slow
def test_two_ranks_train_with_the_edits_in_memory(job: Job, plain_host: Host) -> None:
    """One process does: below."""
    words = ("run", job.script, "--task", job.task, "--scale")
    trained = torchrun(plain_host, "robomimic_ddp", *words, added=job.variables(plain_host))
    require_clean(trained)
    require_one_run(job, trained)


def test_errors_end_the_job_with_another_code_than_0(edited: Job, host_copy: Host) -> None:
    edited.data.write_bytes(b"no dataset")
    trained = edited.train(host_copy)
    assert trained.returncode == 1, trained
    assert "data.hdf5" in trained.stderr and FINISHED not in trained.stdout
    assert not trained.leftovers


def test_an_error_before_train_is_every_ranks(edited: Job, host_copy: Host) -> None:
    edited.data.with_name("data_scaled.hdf5").mkdir()
    trained = edited.train(host_copy, "--scale")
    assert trained.returncode == 1, trained
    assert "IsADirectoryError" in trained.stderr and not trained.leftovers, trained


@pytest.mark.bad_input
def test_over_an_unedited_robomimic_it_says_what_to_do(
    edited: Job, plain_host: Host, tmp_path: Path
) -> None:
    trained = edited.train(plain_host)
    assert trained.returncode == 1, trained
    assert "main is patched, but it calls get_exp_dir of" in trained.stderr
    assert not (tmp_path / "runs").exists()


def test_one_process_trains_as_before(job: Job, host_copy: Host) -> None:
    words = ("run", job.script, "--task", job.task, "--scale")
    trained = python(host_copy, "robomimic_ddp", *words, added=job.variables(host_copy))
    require_clean(trained)
    assert FINISHED in trained.stdout and len(job.reports()) == 1
