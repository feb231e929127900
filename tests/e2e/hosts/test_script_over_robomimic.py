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
from tests.runs import checkpoint_differences, checkpoints, run_directory

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
        paths = [str(path) for path in (self.folder / "checkout/source", host.folder, ROOT)]
        return {"PYTHONPATH": os.pathsep.join(paths), "REPORTS": str(self.folder / "reports")}

    def in_memory(self, host: Host, *words: object) -> Result:
        """Two ranks of `robomimic-ddp run SCRIPT`."""
        program = ("run", self.script, "--task", self.task, *words)
        return torchrun(host, "robomimic_ddp", *program, added=self.variables(host))

    def reports(self) -> list[str]:
        return [path.read_text() for path in sorted((self.folder / "reports").iterdir())]


@pytest.fixture
def job(tmp_path: Path, low_dim_dataset: Path) -> Job:
    return Job(tmp_path, low_dim_dataset)


def test_applied_trained_on_two_ranks_and_reverted_to_the_byte(
    job: Job, host_copy: Host, tmp_path: Path, low_dim_dataset: Path, plain_host: Host
) -> None:
    def ddp(*words: object) -> Result:
        done = run(host_copy, sys.executable, "-m", "robomimic_ddp", *words)
        require_clean(done)
        return done

    before = snapshot(tmp_path / "checkout")
    done = ddp("apply", tmp_path / "checkout")
    assert "1 file edited" in done.stdout and "robomimic, which is patched." in done.stdout, done
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    words = (*launcher, job.script, "--task", job.task, "--scale", "ddp.save_seconds=0")
    trained = run(None, sys.executable, *words, added=job.variables(host_copy))
    require_clean(trained)
    assert FINISHED in trained.stdout and "verified, epoch 2" in trained.stdout, trained
    for rank in range(2):
        assert f"simulator of rank {rank}: cuda:{rank}" in trained.stderr, trained
    first, second = job.reports()
    assert first == second
    directory = run_directory(tmp_path / "runs")
    assert (directory / "logs/scale.txt").read_text() == "2\n"
    ddp("revert", job.script)
    assert snapshot(tmp_path / "checkout") == before

    (tmp_path / "other").mkdir()
    other = Job(tmp_path / "other", low_dim_dataset)
    require_clean(other.in_memory(plain_host, "--scale", "ddp.save_seconds=0"))
    same = (checkpoints(path) for path in (directory, run_directory(tmp_path / "other/runs")))
    one, two = same
    assert one.keys() == two.keys() and len(one) == 2
    for name in one:
        differences = checkpoint_differences(one[name], two[name])
        assert all("config" in line for line in differences), differences
    assert other.reports() == [first, second]


def test_errors_end_the_job_with_another_code_than_0(job: Job, plain_host: Host) -> None:
    job.data.write_bytes(b"no dataset")
    trained = job.in_memory(plain_host)
    assert trained.returncode == 1, trained
    assert "data.hdf5" in trained.stderr and FINISHED not in trained.stdout
    assert not trained.leftovers


def test_an_error_before_train_is_every_ranks(job: Job, plain_host: Host) -> None:
    job.data.with_name("data_scaled.hdf5").mkdir()
    trained = job.in_memory(plain_host, "--scale")
    assert trained.returncode == 1, trained
    assert "IsADirectoryError" in trained.stderr and not trained.leftovers, trained


@pytest.mark.bad_input
def test_over_an_unedited_robomimic_it_says_what_to_do(
    job: Job, plain_host: Host, tmp_path: Path
) -> None:
    edit = (sys.executable, "-m", "robomimic_ddp", "apply", job.script)
    done = run(plain_host, *edit)
    assert f"robomimic-ddp apply {plain_host.package}" in done.stdout.replace("\n", " "), done
    variables = job.variables(plain_host)
    paths = os.pathsep.join([str(job.script.parent), variables["PYTHONPATH"]])
    added = {**variables, "PYTHONPATH": paths}  # so that it can be started as a module
    trained = torchrun(plain_host, "train", "--task", job.task, added=added)
    assert trained.returncode == 1, trained
    assert "main is patched, but it calls get_exp_dir of" in trained.stderr
    assert not (tmp_path / "runs").exists()


def test_one_process_trains_as_before(job: Job, host_copy: Host) -> None:
    words = ("run", job.script, "--task", job.task, "--scale")
    trained = python(host_copy, "robomimic_ddp", *words, added=job.variables(host_copy))
    require_clean(trained)
    assert FINISHED in trained.stdout and len(job.reports()) == 1
