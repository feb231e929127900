"""`robomimic-ddp sweep`: what it refuses, who trains what, and what it prints. Training is a
stand-in (tests/commands/sweep_training.py); test_sweep_host.py has the real one.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from optuna.trial import Trial
from rich.console import Console

from robomimic_ddp import checkpoint, cli
from robomimic_ddp.commands.sweep import command, report, space, study
from robomimic_ddp.commands.sweep.worker import Job, Slot, Worker, make_slots
from robomimic_ddp.config import machine
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED, EXIT_USAGE, UsageError
from tests.commands import sweep_training
from tests.commands.sweep_worker import worker
from tests.configs import make_config, merged, write_config
from tests.hosts import ROOT

RATE = "algo.optim_params.policy.learning_rate.initial"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    data = tmp_path / "data.hdf5"
    data.touch()
    made = make_config("bc", data, tmp_path / "runs")
    return write_config(tmp_path / "config.json", made)


@pytest.fixture
def make(tmp_path: Path, config: Path) -> Callable[..., study.Sweep]:
    def made(*words: str, **options: Any) -> study.Sweep:
        study.new(tmp_path / "sweep", config, space.parse(words), **options)
        return study.Sweep(tmp_path / "sweep")

    return made


def sweep(*words: object) -> int:
    return cli.main(["sweep", *map(str, words)])


def starts(entry: study.Entry) -> list[list[str]]:
    """Process and visible GPUs of each start of a trial's training."""
    return [line.split(" ") for line in (entry.run() / "starts").read_text().splitlines()]


@pytest.mark.bad_input
@pytest.mark.parametrize("words", [(f"{RATE}=1,2",), ("train.data=DATA,missing.hdf5",)])
def test_a_dataset_that_is_not_there_is_refused_before_any_trial(
    words, make, tmp_path, capsys, monkeypatch
):
    data = tmp_path / "data.hdf5"
    made = make(*(word.replace("DATA", str(data)) for word in words))
    if "missing" not in words[0]:
        data.unlink()
    monkeypatch.setattr(command.torchrun, "unpatched", lambda settings: None)
    assert sweep("run", made.directory) == EXIT_REFUSED
    name = "missing.hdf5, the dataset of trial 001" if data.exists() else f"{data}, the dataset"
    assert name in capsys.readouterr().err
    assert {entry.state for entry in made.entries()} == {"waiting"}
    data.touch()
    (tmp_path / "missing.hdf5").touch()
    monkeypatch.chdir(tmp_path)
    made.require_data()


def require_whole(made: study.Sweep, epochs: int = sweep_training.EPOCHS) -> None:
    """Every trial is complete, each of its epochs there once."""
    for entry in made.entries():
        assert entry.state == "complete", (entry, entry.log.read_text())
        lines = (entry.run() / "history.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(1, epochs + 1))


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["a.b=1,2", "c=x"], {"a.b": [1, 2], "c": ["x"]}),
        (["a=1e-4,3e-4,null"], {"a": [1e-4, 3e-4, None]}),
        (["a=[1,2],[]", "b=true"], {"a": [[1, 2], []], "b": [True]}),
        (["a=log(1e-5, 1e-3)"], {"a": {"kind": "log", "low": 1e-5, "high": 1e-3}}),
        (["a=int(1,5)"], {"a": {"kind": "int", "low": 1, "high": 5}}),
    ],
)
def test_values_and_ranges(words, values):
    assert space.parse(words) == values


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.seed"], "expected KEY=VALUE"),
        (["train.seed="], "an empty value"),
        (["train.seed=1,2,"], "an empty value"),
        (["train.seed=1,,2"], "train.seed=1,,2: "),
        (["train.seed=1,1"], "1 is there twice"),
        (["train.seed=1", "train.seed=2"], "train.seed is given twice"),
        (["experiment.name=a,b"], "the sweep sets experiment.name itself"),
        (["a=log(0,1)"], "for log above 0"),
        (["a=uniform(2,1)"], "the smaller number first"),
        (["a=int(1.5,2)"], "expected two numbers"),
    ],
)
def test_values_that_cannot_be_meant(words, said):
    with pytest.raises(UsageError, match=".*") as caught:
        space.parse(words)
    assert said in str(caught.value)


def test_names_are_made_of_the_values():
    values = {"train.seed": 1, RATE: 3e-5, "algo.gmm.enabled": True, "algo.dims": [256, "a/b"]}
    name = space.trial_name(7, values)
    assert name == "007-seed_1-learning_rate_3e-05-gmm_True-dims_256_a_b".replace("256_a", "_256_a")
    assert space.trial_name(0, {}) == "000-trial"
    twins = space.trial_name(0, {"a.actor.size": 1, "a.critic.size": 2})
    assert twins == "000-a.actor.size_1-a.critic.size_2"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["train.sed=1,2"], EXIT_REFUSED, "The closest valid key is train.seed"),
        (["train.num_epochs=5,none"], EXIT_REFUSED, "train.num_epochs='none'"),
        (["ddp.precision=fp32,fp8"], EXIT_REFUSED, "ddp.precision='fp8'"),
        ([], EXIT_USAGE, "no values to try"),
        (["train.batch_size=4,-1"], EXIT_REFUSED, "train.batch_size=-1: expected a whole number"),
        (
            ["train.batch_size=uniform(1,8)", "--sampler", "random", "--trials", "2"],
            EXIT_REFUSED,
            "train.batch_size=1.0: expected a whole number",
        ),
        (
            ["experiment.validate=true,false", "--metric", "valid/Loss"],
            EXIT_USAGE,
            "experiment.validate is false for some trials",
        ),
        (["train.seed=1", "--metric", "valid/loss"], EXIT_USAGE, "Did you mean valid/Loss?"),
        (
            ["train.seed=1", "--metric", "rollout/Success_Rate"],
            EXIT_USAGE,
            "experiment.rollout.enabled is false for all trials",
        ),
        (["train.seed=log(1,2)"], EXIT_USAGE, "train.seed is a range"),
        (["train.seed=1", "--trials", "3"], EXIT_USAGE, "--trials is given"),
        (["train.seed=1", "--trials", "0"], EXIT_USAGE, "expected 1 or more"),
        (["train.batch_size=1,2", "--sampler", "tpe"], EXIT_USAGE, "--trials N"),
        (
            ["train.seed=1,2", "--sampler", "tpe", "--trials", "2"],
            EXIT_USAGE,
            "the luckiest seed",
        ),
    ],
)
def test_nothing_is_made_of_what_could_not_be_trained(words, code, said, config, tmp_path, capsys):
    assert sweep("new", tmp_path / "sweep", "--config", config, *words) == code
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    assert not (tmp_path / "sweep").exists()


def test_trials_are_compared_by_what_all_of_them_have(make):
    assert make("experiment.rollout.enabled=true,false").metric == "valid/Loss"


def test_a_folder_has_one_sweep(make, config, tmp_path, capsys):
    made = make("train.seed=1,2")
    assert sweep("new", made.directory, "--config", config, "train.seed=3") == EXIT_USAGE
    assert sweep("import", made.directory, config) == EXIT_USAGE
    assert capsys.readouterr().err.count("of another sweep") == 2
    assert len(study.Sweep(made.directory).entries()) == 2
    for action in ("run", "show", "plot"):
        assert sweep(action, tmp_path) == EXIT_REFUSED
        assert "expected the folder of a sweep" in capsys.readouterr().err
    (made.directory / study.JOURNAL).write_text("something else\n")
    assert sweep("show", made.directory) == EXIT_REFUSED
    assert "cannot be read as the journal" in capsys.readouterr().err


def test_optuna_is_an_extra(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for words in (["new", tmp_path, "--config", config, "train.seed=1"], ["show", tmp_path]):
        assert sweep(*words) == EXIT_REFUSED
        assert 'pip install ".[sweep]"' in capsys.readouterr().err


def test_an_unedited_host_trains_nothing(make, capsys):
    """It is the installed one: every trial would fail."""
    assert sweep("run", make("train.seed=1").directory) == EXIT_REFUSED
    assert "robomimic-ddp apply" in capsys.readouterr().err


def test_the_host_is_the_one_that_trials_import(make, tmp_path):
    """Trials are `python -m` in the current folder; a console script does not search it."""
    (tmp_path / "robomimic" / "utils").mkdir(parents=True)
    for name in ("__init__.py", "utils/train_utils.py"):
        (tmp_path / "robomimic" / name).touch()
    script = tmp_path / "bin" / "robomimic-ddp"
    script.parent.mkdir()
    script.write_text("import sys\nfrom robomimic_ddp import cli\nsys.exit(cli.main())\n")
    words = [sys.executable, script, "sweep", "run", make("train.seed=1").directory]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == EXIT_REFUSED
    assert f"{tmp_path / 'robomimic'}" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "visible", "said"),
    [
        (["--gpus", "2"], "", "no GPU is visible"),
        (["--gpus", "0,4"], "3,5", "no device 4"),
        ([], "3,6", "names GPU 6, and this node has 6"),
        (["--ranks-per-trial", "3"], "3,5", "a trial needs as many GPUs, and there are 2"),
    ],
)
def test_gpus_that_are_not_there(words, visible, said, make, capsys, monkeypatch):
    monkeypatch.setattr(command.torchrun, "unpatched", lambda settings: "")
    monkeypatch.setattr(command.devices, "installed_gpus", lambda: 6)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sweep("run", make("train.seed=1").directory, *words) == EXIT_USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "visible", "slots"),
    [
        ([], "", [""]),
        (["--slots", "2"], "", ["", ""]),
        ([], "3,5", ["3", "5"]),
        (["--gpus", "1,0"], "3,5", ["5", "3"]),
        (["--gpus", "1"], "3,5", ["3"]),
        (["--ranks-per-trial", "2", "--slots", "3"], "0,1,2,3,4", ["0,1", "2,3", "0,1"]),
    ],
)
def test_slots_have_their_gpus(words, visible, slots, make, monkeypatch):
    seen = []

    def look(self: Worker, retry_failed: bool) -> int:
        seen.extend(self._environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in self.slots)
        return EXIT_DONE

    monkeypatch.setattr(command.torchrun, "unpatched", lambda settings: "")
    monkeypatch.setattr(Worker, "run", look)
    monkeypatch.setattr(command.devices, "installed_gpus", lambda: 6)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sweep("run", make("train.seed=1").directory, *words) == EXIT_DONE
    assert seen == slots


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_slots_on_the_cpu_share_its_cores(make, monkeypatch):
    """Else the two threads that hosts take for each training wait for each other in busy loops."""
    with monkeypatch.context() as patched:
        patched.setattr(machine, "own_cores", lambda: (2, 3, 5, 7, 8))
        assert [one.cores for one in make_slots([], 1, 2)] == [(2, 3), (5, 7)]
        assert [one.cores for one in make_slots([], 1, 6)] == [()] * 6
        assert [one.cores for one in make_slots(["0", "1"], 1, None)] == [(), ()]
    made, core = make("train.seed=1,2"), machine.own_cores()[-1]
    show = ["-c", "import os, time; time.sleep(0.5); print(os.sched_getaffinity(0))"]
    Worker(made, [Slot(0, "", (core,))], program=show, poll=0.05).run()
    assert f"{{{core}}}" in made.entries()[0].log.read_text()


def test_trials_of_a_grid_on_two_slots(make, capsys, tmp_path):
    made = make("train.seed=1,2,3", f"{RATE}=1e-4,3e-4")
    assert worker(made.directory, gpus=("3", "5")).run() == EXIT_DONE
    require_whole(made)
    reported = [starts(entry) for entry in made.entries()]
    assert all(len(one) == 1 for one in reported) and {one[0][1] for one in reported} == {"3", "5"}
    assert [entry.value for entry in made.entries()] == [0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    said = capsys.readouterr().out
    assert said.count("begins on GPU") == 6 and said.endswith("6 complete\n")
    assert sweep("show", made.directory) == EXIT_DONE
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split()[:4] == ["learning_rate", "mean", "deviation", "best"]
    assert shown[2].split() == ["0.0001", "0.5", "0.25", "0.25", "3", "complete", "000"]
    assert shown[4] == f"best of the first line: {made.entries()[0].run()}"
    assert sweep("plot", made.directory, "-o", tmp_path / "sweep.png") == EXIT_DONE
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    assert worker(made.directory).run() == EXIT_DONE, "nothing is left to do"


def test_a_failing_trial_is_listed_and_the_others_continue(make, capsys):
    made = make("train.batch_size=12,13,14")
    failed = made.entries()[1]
    (failed.folder / "20260101").mkdir(parents=True)
    (failed.folder / "20260101" / study.REQUEUE).touch()  # stopped before: it has failed since
    assert worker(made.directory, 1).run() == EXIT_REFUSED
    said = capsys.readouterr().out
    assert [entry.state for entry in made.entries()] == ["complete", "fail", "complete"]
    assert f"FAILED: ValueError: 13 samples bring no luck ({failed.log})" in said
    assert sweep("show", made.directory) == EXIT_DONE
    assert "failed: 001-batch_size_13: ValueError: 13 samples" in capsys.readouterr().out
    assert worker(made.directory, 1).run() == EXIT_REFUSED, "it is not tried again by itself"
    (failed.run() / "mended").touch()
    assert worker(made.directory, 1).run(retry_failed=True) == EXIT_DONE
    require_whole(made)
    assert [len(starts(entry)) for entry in made.entries()] == [1, 2, 1]


def test_a_search_has_its_number_of_trials(make):
    made = make(f"{RATE}=log(1e-5,1e-3)", "train.batch_size=4,8", sampler="tpe", trials=4)
    assert worker(made.directory).run() == EXIT_DONE
    require_whole(made)
    assert [entry.index for entry in made.entries()] == [0, 1, 2, 3]
    assert all(1e-5 <= entry.values[RATE] <= 1e-3 for entry in made.entries())
    assert len({entry.name for entry in made.entries()}) == 4


def test_trials_that_fall_behind_are_pruned(make):
    """The first is better at every epoch; ASHA compares at epochs 1, 4, 16, ..."""
    made = make("train.seed=1,5,6", "train.num_epochs=40", prune=True)
    assert worker(made.directory, 1).run() == EXIT_DONE
    states = {entry.values["train.seed"]: entry.state for entry in made.entries()}
    assert states == {1: "complete", 5: "pruned", 6: "pruned"}
    for entry in made.entries()[1:]:
        assert len(entry.curve("valid/Loss")) < 40 and (entry.run() / "requeue").exists()


@pytest.mark.parametrize(("epochs", "pruned"), [(3, True), (4, False)])
def test_nothing_is_pruned_after_its_last_epoch(epochs, pruned, make, monkeypatch):
    """That would save no time."""
    made = make("train.seed=1", "train.num_epochs=4", prune=True)
    (entry,) = made.entries()
    (entry.folder / "run").mkdir(parents=True)
    lines = [{"epoch": at + 1, "phase": "valid", "log": {"Loss": 1.0}} for at in range(epochs)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (entry.folder / "run" / "history.jsonl").write_text(text)
    monkeypatch.setattr(Trial, "should_prune", lambda trial: len(reports(trial)) == epochs)
    one = worker(made.directory)
    job = Job(entry, one.slots[0], lock=-1, trial=made.begin(entry))
    one._report(job, lambda line: None)
    assert job.pruned is pruned and len(reports(job.trial)) == epochs


def reports(trial: Trial) -> dict[int, float]:
    return trial.storage.get_trial(trial._trial_id).intermediate_values


def test_a_trial_that_was_pruned_is_not_resumed(make):
    """Its worker was killed before it had written so."""
    made = make("train.seed=1", "train.num_epochs=40", prune=True)
    made.begin(made.entries()[0]).set_user_attr("pruned after epoch", 4)
    assert worker(made.directory, 1).run() == EXIT_DONE
    assert made.entries()[0].state == "pruned" and not made.entries()[0].folder.exists()


def started(made: study.Sweep, slots: int = 2) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.commands.sweep_worker", made.directory, str(slots)]
    with open(made.directory / "worker.txt", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)


def wait_for(truth: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not truth():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.01)


def trained(made: study.Sweep, epochs: int) -> Callable[[], bool]:
    return lambda: any(len(entry.curve("valid/Loss")) >= epochs for entry in made.entries())


def test_two_workers_train_no_trial_twice(make):
    made = make("train.seed=1,2,3,4,5,6,7,8")
    workers = [started(made), started(made)]
    assert [one.wait(60) for one in workers] == [EXIT_DONE] * 2
    require_whole(made)
    assert [len(starts(entry)) for entry in made.entries()] == [1] * 8
    assert (made.directory / "worker.txt").read_text().count(": complete") == 8


@pytest.mark.parametrize("with_trainings", [True, False])
def test_a_killed_workers_trials_continue(make, with_trainings):
    """The next worker waits for trainings that outlived the first, and resumes the others."""
    made = make("train.seed=1,2,3", "train.num_epochs=30")
    first = started(made)
    wait_for(trained(made, 5))
    trainings = psutil.Process(first.pid).children(recursive=True)
    assert len(trainings) == 2
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    for one in trainings if with_trainings else ():
        one.kill()
    assert worker(made.directory).run() == EXIT_DONE
    require_whole(made, 30)
    again = 2 if with_trainings else 1
    assert [len(starts(entry)) for entry in made.entries()] == [again, again, 1]


def test_a_training_that_is_killed_is_resumed(make, capsys):
    made = make("train.seed=1", "train.num_epochs=30")
    one = started(made, 1)
    wait_for(trained(made, 5))
    psutil.Process(one.pid).children()[0].kill()
    assert one.wait(60) == EXIT_DONE
    require_whole(made, 30)
    assert "ended by SIGKILL" in (made.directory / "worker.txt").read_text()


def test_show_says_stopped_for_what_nobody_trains(make):
    made = make("train.seed=1,2,3", "train.num_epochs=30")
    one = started(made, 1)
    wait_for(trained(made, 2))
    assert report.summary(made) == "1 running, 2 waiting"
    one.kill()
    one.wait(30)
    assert report.summary(made) == "1 running, 2 waiting", "its training continues without it"
    wait_for(lambda: not psutil.pid_exists(one.pid) and made.entries()[0].is_finished)
    wait_for(lambda: report.summary(made) == "1 stopped, 2 waiting")


def test_a_stopped_worker_stops_its_trials(make):
    made = make("train.seed=1,2,3", "train.num_epochs=60")
    first = started(made)
    wait_for(lambda: all(entry.curve("valid/Loss") for entry in made.entries()[:2]))
    first.terminate()
    assert first.wait(30) == EXIT_STOPPED
    entries = made.entries()
    assert [entry.state for entry in entries] == ["running", "running", "waiting"]
    assert (entries[0].run() / "requeue").exists()
    assert report.summary(made) == "2 stopped, 1 waiting"
    assert worker(made.directory).run() == EXIT_DONE
    require_whole(made, 60)


def test_the_real_generators_output_is_imported(config, tmp_path, capsys):
    """The host's hyperparam_helper: 8 configs and a script."""
    from robomimic.config import config_factory

    script, defaults = tmp_path / "all.sh", json.loads(config_factory("bc").dump())
    write_config(config, merged(defaults, json.loads(config.read_text())))
    command = ["-m", "robomimic.scripts.hyperparam_helper", "--config", config, "--script", script]
    subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True)
    assert sweep("import", tmp_path / "sweep", script) == EXIT_DONE
    assert capsys.readouterr().out.startswith("8 trials, compared by valid/Loss")
    made = study.Sweep(tmp_path / "sweep")
    entries = made.entries()
    assert entries[0].name == "000-test_plr_0.001_gmm_t_rnnd_400_mlp_1024"
    assert set(entries[0].values) == {
        RATE,
        "algo.gmm.enabled",
        "algo.rnn.hidden_dim",
        "algo.actor_layer_dims",
    }
    assert worker(made.directory).run() == EXIT_DONE
    require_whole(made)
    assert sweep("show", made.directory) == EXIT_DONE
    table = capsys.readouterr().out.splitlines()
    columns = ["learning_rate", "actor_layer_dims", "gmm", "hidden_dim", "best", "trials", "best"]
    heading = next(line for line in table if line.startswith(columns[0]))
    assert heading.split()[:7] == columns and len(heading) <= 80
    files = [str(path) for path in sorted(tmp_path.glob("test_*.json"))]
    assert sweep("import", tmp_path / "files", *files) == EXIT_DONE
    assert len(study.Sweep(tmp_path / "files").entries()) == 8
    (tmp_path / "empty.sh").write_text("#!/bin/bash\necho --configs\n")
    assert sweep("import", tmp_path / "none", tmp_path / "empty.sh") == EXIT_USAGE
    assert "trains nothing" in capsys.readouterr().err


def test_the_live_table(make):
    made = make("train.seed=1,2,3", "train.num_epochs=30")
    one, text = worker(made.directory), io.StringIO()
    one._fill(lambda line=None: None)
    wait_for(trained(made, 2))
    Console(file=text, width=100).print(report._table(one))
    for job in one.jobs.values():
        one._stop(job)
        job.process.wait()
    assert "000-seed_1" in text.getvalue() and "2 running, 1 waiting" in text.getvalue()
    assert "valid/Loss" in text.getvalue() and "slot 1" in text.getvalue()


def test_the_names_of_a_runs_files():
    assert (study.RECORD, study.REQUEUE) == (checkpoint.RECORD_NAME, checkpoint.REQUEUE_NAME)


def test_the_sbatch_file(make, tmp_path, capsys):
    made = make("train.seed=1,2")
    file = tmp_path / "sweep.sbatch"
    words = ("slurm", made.directory, "--array", 16, "--ranks-per-trial", 2)
    assert sweep(*words) == EXIT_DONE
    text = capsys.readouterr().out
    assert sweep(*words, "-o", file) == EXIT_DONE and file.read_text() == text
    assert "--array=0-15" in text and "--gpus-per-node=2" in text
    assert f"sweep run {made.directory} --ranks-per-trial 2" in text
    check = [str(Path(sys.executable).with_name("shellcheck")), str(file)]
    assert subprocess.run(check, capture_output=True).returncode == 0


@pytest.mark.parametrize(("code", "queued"), [(0, ""), (1, ""), (75, "requeue 7_3\n")])
def test_a_stopped_task_of_the_array_is_queued_again(code, queued, make, tmp_path):
    file = tmp_path / "sweep.sbatch"
    assert sweep("slurm", make("train.seed=1,2").directory, "--array", 2, "-o", file) == EXIT_DONE
    stand_ins = {"srun": f'echo "$@" >ran; exit {code}', "scontrol": 'echo "$@" >>queued'}
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\ncd {tmp_path}\n{text}\n")
        (tmp_path / name).chmod(0o755)
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **task}
    done = subprocess.run(["bash", str(file)], env=variables, timeout=30)
    assert done.returncode == (0 if queued else code)
    assert (tmp_path / "ran").read_text().endswith(f"sweep run {tmp_path / 'sweep'}\n")
    assert queued == ((tmp_path / "queued").read_text() if queued else "")
    assert (tmp_path / "queued").exists() == bool(queued)
