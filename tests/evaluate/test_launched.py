"""`ddp.rollouts=evaluate` and `launch --evaluate`: training plays nothing, the evaluator all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import psutil
import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from robomimic_ddp import cli
from robomimic_ddp.commands.evaluate.checkpoints import BEST_SUCCESS
from robomimic_ddp.commands.launch import quiet_torchrun
from robomimic_ddp.commands.launch.evaluation import Evaluation
from robomimic_ddp.config import env
from robomimic_ddp.errors import EXIT_REFUSED, EXIT_STOPPED
from robomimic_ddp.monitoring.records import evaluation, history
from tests.configs import make_config, merged, write_config
from tests.evaluate.conftest import CHANGES
from tests.evaluate.support import of_evaluation, of_training
from tests.hosts import Host, python, require_clean, torchrun
from tests.processes import wait_for
from tests.runs import run_directory


@contextmanager
def closed_output() -> Iterator[None]:
    """For the block, both standard streams are a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe, mock.patch.multiple(sys, stdout=pipe, stderr=pipe):
        yield


@pytest.mark.e2e
@pytest.mark.timeout(500)
def test_training_plays_nothing_and_the_evaluator_the_same_episodes(
    trained: Path, point_host: Host, low_dim_dataset: Path, command, tmp_path: Path
) -> None:
    """Both as the launcher starts them. The host would save no checkpoint of the first epoch, which
    has rollouts.
    """
    saves = {"every_n_epochs": 2, "on_best_validation": False}
    changes = merged(CHANGES, {"experiment": {"save": saves}})
    config = make_config("bc", low_dim_dataset, tmp_path / "runs", changes)
    file = write_config(tmp_path / "config.json", config)
    _, plan, _ = command("launch", "--config", file, "--gpus", 2, "--evaluate", "--dry-run")
    assert "on the CPU, at a lower priority than the ranks" in " ".join(plan.split())
    added = {"ROBOMIMIC_DDP_ROLLOUTS": "evaluate", env.EVALUATE: "--workers 1"}
    added[env.RESUME_NOTE] = str(tmp_path / "resume")
    result = torchrun(point_host, "robomimic.scripts.train", "--config", file, added=added)
    require_clean(result)
    run = Path((tmp_path / env.RUN_NOTE).read_text())
    assert run == run_directory(tmp_path / "runs")
    plan = " ".join(result.stdout.split())
    assert f"run by `robomimic-ddp evaluate {run} --follow`" in plan
    require_clean(python(point_host, "robomimic_ddp", "evaluate", run, "--follow"))
    assert "rollout" not in {line["phase"] for line in history.read(run)}
    assert of_evaluation(run) == {
        epoch: pytest.approx(values, rel=1e-5) for epoch, values in of_training(trained).items()
    }
    assert (run / "models" / "model_epoch_1.pth").is_file()
    names = {line["checkpoint"] for line in evaluation.results(run)}
    assert names == {"models/model_epoch_1.pth", "models/model_epoch_2.pth"}
    assert (run / BEST_SUCCESS).exists()
    options = json.loads((run / "ddp.json").read_text())["options"]
    assert options["rollouts"] == "evaluate"


@pytest.mark.parametrize("waits", [True, False])
def test_an_evaluation_that_ends_badly_says_its_command(waits, tmp_path, capfd):
    """Training that fails, or ends before the run has a folder, leaves no process."""
    note = tmp_path / "resume"
    (tmp_path / "run").write_text(str(tmp_path / "none"))
    for words in ("--workers 1", ""):
        beside = Evaluation(note, words)
        if words:
            beside._begin()
        beside.end(waits)
        assert beside.process is None or beside.process.returncode != 0
    err = capfd.readouterr().err
    again = "" if waits else "to evaluate as well, launch again with --resume; "
    assert f"missing; {again}run the remaining rollouts with:\n  cd {Path.cwd()} && " in err
    assert err.count(f"robomimic-ddp evaluate {tmp_path / 'none'} --follow --workers 1\n") == 1


def test_a_launcher_that_is_killed_leaves_no_evaluation(tmp_path):
    """A resumed run's evaluation would find its results locked."""
    program, file = tmp_path / "python", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ > {file}.new; mv {file}.new {file}; exec sleep 60\n")
    program.chmod(0o755)
    (tmp_path / env.RUN_NOTE).write_text("run")
    code = (
        "import sys, time, pathlib\n"
        "from robomimic_ddp.commands.launch.evaluation import Evaluation\n"
        f"sys.executable = {str(program)!r}\n"
        f"beside = Evaluation(pathlib.Path({str(tmp_path / 'note')!r}), '--workers 1')\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as launcher:
        wait_for(file.is_file)
        evaluator = psutil.Process(int(file.read_text()))
        time.sleep(0.5)
        assert evaluator.is_running(), "it lives while the launcher does"
        launcher.kill()
    wait_for(lambda: not evaluator.is_running() or evaluator.status() == psutil.STATUS_ZOMBIE)


def test_a_signal_while_the_last_results_are_awaited_ends_the_evaluation(monkeypatch, capfd):
    class Sleeping(Evaluation):
        def _begin(self) -> None:
            self.arguments, self.process = ["evaluate"], subprocess.Popen(["sleep", "60"])
            started.append(self.process)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    started: list[subprocess.Popen] = []
    monkeypatch.setattr(quiet_torchrun, "torchrun", lambda: None)
    monkeypatch.setattr(quiet_torchrun, "Evaluation", Sleeping)
    monkeypatch.setenv(env.EVALUATE, "--workers 1")
    assert quiet_torchrun.main() == 128 + signal.SIGINT
    assert [process.returncode for process in started] == [-signal.SIGTERM]
    error = capfd.readouterr().err
    assert error.count("results of the evaluation are missing") == 1
    assert error.endswith("after SIGINT\n")


def stopped():
    rank = ProcessFailure(local_rank=0, pid=1, exitcode=EXIT_STOPPED, error_file="none")
    raise ChildFailedError("train", {0: rank})


def test_a_closed_output_changes_no_exit_code(monkeypatch):
    """As after Ctrl-C has ended `tee`."""
    monkeypatch.setattr(quiet_torchrun, "torchrun", stopped)
    with closed_output():
        assert quiet_torchrun.main() == EXIT_STOPPED


@pytest.mark.bad_input
def test_a_closed_output_hides_no_missing_result(tmp_path):
    (tmp_path / "ddp.json").write_text('{"outcome": {}}')
    (tmp_path / "last.pth").write_text("damaged")
    with closed_output():
        assert cli.main(["evaluate", str(tmp_path), "--workers", "1"]) == EXIT_REFUSED


@pytest.mark.parametrize(("ends", "code"), [("true", 0), ("false", 1)])
def test_a_run_whose_results_are_missing_is_not_done(ends, code, monkeypatch, capfd):
    """A script would take it for evaluated."""

    class Ended(Evaluation):
        def _begin(self) -> None:
            self.arguments, self.process = ["evaluate"], subprocess.Popen([ends])

    monkeypatch.setattr(quiet_torchrun, "torchrun", lambda: None)
    monkeypatch.setattr(quiet_torchrun, "Evaluation", Ended)
    monkeypatch.setenv(env.EVALUATE, "--workers 1")
    assert quiet_torchrun.main() == code
    assert ("results of the evaluation are missing" in capfd.readouterr().err) == bool(code)


def test_the_evaluator_has_what_ranks_leave_free_as_far_as_memory_allows(monkeypatch):
    from robomimic_ddp.commands.launch import devices, torchrun
    from robomimic_ddp.commands.launch.arguments import Settings
    from robomimic_ddp.config import machine

    monkeypatch.setattr(machine, "machine_memory", lambda: 2**40)
    monkeypatch.setattr(devices, "installed_gpus", lambda: 4)
    monkeypatch.setattr(machine, "usable_cores", lambda: 16)
    monkeypatch.setattr(torchrun, "read_json", lambda *_: {})
    settings = Settings(config="cfg.json", gpus=3, evaluate=True)
    job = torchrun.command(settings, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert job.evaluation == ("--workers", "13", "--gpus", "3")
    assert job.added["ROBOMIMIC_DDP_ROLLOUTS"] == "evaluate"
    job = torchrun.command(Settings(config="cfg.json", gpus=4, evaluate=True), {})
    assert job.evaluation == ("--workers", "12", "--gpus", "")
    monkeypatch.setattr(machine, "machine_memory", lambda: 20 * 2**30)
    job = torchrun.command(Settings(config="cfg.json", gpus=4, evaluate=True), {})
    assert job.evaluation == ("--workers", "10", "--gpus", "")
