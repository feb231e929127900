"""`robomimic-ddp sweep`: what it refuses, who trains what, and what it prints. Training is a
stand-in (tests/commands/sweep_training.py); test_sweep_host.py has the real one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import psutil
import pytest

from robomimic_ddp import cli
from robomimic_ddp.checkpoint import lock as run_lock
from robomimic_ddp.commands.sweep import command, new, space, study
from robomimic_ddp.commands.sweep import worker as sweep_workers
from robomimic_ddp.commands.sweep.study import Trial
from robomimic_ddp.commands.sweep.worker import Worker
from robomimic_ddp.errors import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_STOPPED,
    EXIT_USAGE,
    DataError,
    UsageError,
)
from robomimic_ddp.monitoring.records.run_files import RECORD, REQUEUE
from tests.commands import sweep_training
from tests.commands.sweep_worker import TRAINING, worker
from tests.hosts import ROOT
from tests.processes import wait_for
from tests.ranks.bad_disks import too_large

RATE = "algo.optim_params.policy.learning_rate.initial"
GPUS = ("0", "1")


def sweep(*words: object) -> int:
    return cli.main(["sweep", *map(str, words)])


def starts(entry: Trial) -> list[list[str]]:
    """Process and visible GPUs of each start of a trial's training."""
    return [line.split(" ") for line in (entry.run() / "starts").read_text().splitlines()]


def require_complete(search: study.Sweep, epochs: int = sweep_training.EPOCHS) -> None:
    """Every trial is complete, each of its epochs there once."""
    for entry in search.trials():
        assert entry.state == "complete", (entry, entry.log.read_text())
        lines = (entry.run() / "history.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(1, epochs + 1))


def start_worker(search: study.Sweep, gpus: Sequence[str] = GPUS) -> subprocess.Popen:
    words = [sys.executable, "-m", "tests.commands.sweep_worker", search.directory, *gpus]
    with open(search.directory / "worker.txt", "ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, cwd=ROOT)


def trained(search: study.Sweep, epochs: int, trials: int = 1) -> Callable[[], bool]:
    """Whether as many trials have as many epochs."""
    return lambda: sum(len(entry.curve()) >= epochs for entry in search.trials()) >= trials


def test_a_sweep_that_was_stopped_while_it_was_made_is_made_again(make, monkeypatch):
    with monkeypatch.context() as stopped:
        stopped.setattr(new.journal, "storage", lambda path: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            make("train.seed=1,2")
    assert len(make("train.seed=1,2").trials()) == 2


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["a.b=1,2", "c=x"], [{"a.b": 1, "c": "x"}, {"a.b": 2, "c": "x"}]),
        (["a=x=1,y"], [{"a": "x=1"}, {"a": "y"}]),
        (["a=1e-4,3e-4,null"], [{"a": 1e-4}, {"a": 3e-4}, {"a": None}]),
        (["a=[1,2],[]", "b=true"], [{"a": [1, 2], "b": True}, {"a": [], "b": True}]),
        (["a=log(1e-5, 1e-3)"], [{"a": 1e-5}, {"a": 1e-3}]),
        (["a=int(1,5)", "b=1,2,3"], [{"a": 1, "b": 1}, {"a": 5, "b": 2}, {"a": 5, "b": 3}]),
    ],
)
def test_values_and_ranges(words, values):
    assert list(space.samples(space.parse(words))) == values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.seed"], "expected KEY=VALUE"),
        (["--a=1"], "expected KEY=VALUE"),
        (["train.seed=1,2,"], "train.seed=1,2,: an empty value"),
        (["train.seed=1,1"], "train.seed=1,1: 1 is listed twice"),
        (["train.seed=1", "train.seed=2"], "train.seed is given twice"),
        (["ddp.resume=a,b"], "the sweep sets ddp.resume"),
        (["a=log(0,1)"], "above 0 for log"),
        (["a=uniform(2,1)"], "a=uniform(2,1): expected two finite numbers, the smaller first"),
        (["a=uniform(0,inf)"], "two finite numbers"),
        (["a=int(1.5,2)"], "whole for int"),
    ],
)
def test_values_that_cannot_be_meant(words, message):
    with pytest.raises(UsageError) as caught:
        space.parse(words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train.sed=1,2"], EXIT_REFUSED, "The closest valid key is train.seed"),
        (["train.num_epochs=5,none"], EXIT_REFUSED, "train.num_epochs='none'"),
        ([], EXIT_USAGE, "no values to try"),
        (["train.batch_size=4,-1"], EXIT_REFUSED, "train.batch_size=-1: expected a whole number"),
        (
            ["experiment.validate=true,false", "--metric", "valid/Loss"],
            EXIT_USAGE,
            "experiment.validate is false, and such a trial",
        ),
        (
            ["train.seed=1", "--metric", "rollout/Success_Rate"],
            EXIT_USAGE,
            "experiment.rollout.enabled is false",
        ),
        (["train.seed=1,2", "ddp.rollouts=evaluate"], EXIT_USAGE, "these would log no episodes"),
        (["train.seed=log(1,2)"], EXIT_USAGE, "train.seed is a range"),
        (["train.seed=1", "--trials", "3"], EXIT_USAGE, "--trials is given"),
        (["train.batch_size=1,2", "--sampler", "tpe"], EXIT_USAGE, "--trials N"),
        (
            ["train.seed=1,2", "--sampler", "tpe", "--trials", "2"],
            EXIT_USAGE,
            "the luckiest seed",
        ),
    ],
)
def test_nothing_is_made_of_what_could_not_be_trained(
    words, code, message, config, tmp_path, capsys
):
    assert sweep("new", tmp_path / "sweep", "--config", config, *words) == code
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "sweep").exists()


def test_trials_are_compared_by_what_all_of_them_have(make):
    assert make("experiment.rollout.enabled=true,false").metric == "valid/Loss"


def test_a_folder_has_one_sweep(make, config, tmp_path, capsys):
    search = make("train.seed=1,2")
    assert sweep("new", search.directory, "--config", config, "train.seed=3") == EXIT_USAGE
    assert "already has sweep.journal. Train that sweep with" in capsys.readouterr().err
    assert len(study.Sweep(search.directory).trials()) == 2
    for action in ("run", "show"):
        assert sweep(action, tmp_path) == EXIT_REFUSED
        assert "expected the folder of a sweep" in capsys.readouterr().err
    (search.directory / study.JOURNAL).write_text("something else\n{}\n")
    assert sweep("show", search.directory) == EXIT_REFUSED
    assert "cannot be read as the journal" in capsys.readouterr().err
    os.truncate(search.directory / study.JOURNAL, study._MOST_BYTES + 1)
    assert sweep("show", search.directory) == EXIT_REFUSED
    assert f"{study.JOURNAL} cannot be read: " in capsys.readouterr().err
    (search.directory / study.JOURNAL).unlink()
    (search.directory / study.JOURNAL).mkdir()
    assert sweep("show", search.directory) == EXIT_REFUSED
    assert f"{study.JOURNAL} cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "trials/000-seed_1"])
def test_what_a_sweep_without_its_journal_has_left_is_not_overwritten(
    name, config, tmp_path, capsys
):
    (tmp_path / "sweep" / name).mkdir(parents=True)
    assert sweep("new", tmp_path / "sweep", "--config", config, "train.seed=3") == EXIT_USAGE
    message = f"already has {name.partition('/')[0]}. Remove it, or name another folder."
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "sweep" / study.JOURNAL).exists()


def test_optuna_is_an_extra(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for words in (["new", tmp_path, "--config", config, "train.seed=1"], ["show", tmp_path]):
        assert sweep(*words) == EXIT_REFUSED
        assert 'pip install ".[sweep]"' in capsys.readouterr().err


@pytest.mark.parametrize("version", ["4.2.1", "3.6.2"])
def test_an_optuna_whose_locks_outlive_their_workers_is_refused(version, tmp_path, monkeypatch):
    """Its next writer would wait without end."""
    monkeypatch.setattr("optuna.__version__", version)
    with pytest.raises(DataError, match=f"need Optuna 4.3 or later: {version} never"):
        study.Sweep(tmp_path)


def test_an_unedited_host_trains_nothing(make, capsys):
    """Every trial would fail. Which host it is: test_launch_checks.py."""
    assert sweep("run", make("train.seed=1").directory) == EXIT_REFUSED
    assert "robomimic-ddp apply" in capsys.readouterr().err


@pytest.fixture
def on_two_ranks(monkeypatch):
    """`on_two_ranks(sweep)`: the exit code of `sweep run --ranks 2`; training is a stand-in."""
    monkeypatch.setattr(command.checks, "require_patched", lambda: "")
    monkeypatch.setattr(command, "_gpus", lambda ranks: [""])
    monkeypatch.setattr(sweep_workers, "Worker", lambda search, *_: worker(search.directory))
    return lambda search: sweep("run", search.directory, "--ranks", "2")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["train.batch_size=13,15"], {}),
        (["train.batch_size=13", f"{RATE}=log(1e-5,1e-3)"], {"sampler": "random", "trials": 2}),
    ],
)
def test_a_batch_that_does_not_split_over_the_ranks_begins_no_trial(
    words, options, make, capsys, on_two_ranks
):
    """Every trial would fail, and a failed trial is not trained again."""
    search = make("ddp.batch=global", *words, **options)
    assert on_two_ranks(search) == EXIT_REFUSED
    assert "train.batch_size=13 with ddp.batch=global does not split" in capsys.readouterr().err
    assert [entry.state for entry in search.trials()] == ["waiting"] * 2


def test_a_batch_that_splits_over_the_ranks_trains_where_another_does_not(
    make, capsys, on_two_ranks
):
    search = make("ddp.batch=global", "train.batch_size=13,12")
    assert on_two_ranks(search) == EXIT_REFUSED
    assert [entry.state for entry in search.trials()] == ["fail", "complete"]
    assert "1 failed" in capsys.readouterr().out


def test_trials_that_are_finished_need_no_batch_that_splits(make, on_two_ranks):
    search = make("ddp.batch=global", "train.batch_size=13,12")
    first, _ = search.trials()
    first.begin()
    (run := first.folder / "20260101").mkdir(parents=True)
    log = {"epoch": 1, "phase": "valid", "log": {"Loss": 1.0}}
    (run / "history.jsonl").write_text(json.dumps(log) + "\n")
    (run / RECORD).write_text(json.dumps({"outcome": {}}))  # the worker was killed then
    for _ in range(2):
        assert on_two_ranks(search) == EXIT_DONE
    assert [entry.state for entry in search.trials()] == ["complete"] * 2


def test_a_trial_that_could_not_train_is_complete_where_it_has_trained(make, on_two_ranks):
    search = make("ddp.batch=global", "train.batch_size=13,15")
    for entry in search.trials():
        entry.begin()
        search.study.tell(entry.number, 1.0)
    assert on_two_ranks(search) == EXIT_DONE, "nothing is left to do"


@pytest.mark.parametrize("drawn", ["13,12", "int(13,15)"])
def test_a_batch_that_is_yet_to_be_drawn_may_split(drawn, make, on_two_ranks, monkeypatch):
    monkeypatch.setattr(Worker, "run", lambda self: EXIT_DONE)
    search = make("ddp.batch=global", f"train.batch_size={drawn}", sampler="random", trials=2)
    assert on_two_ranks(search) == EXIT_DONE


@pytest.mark.parametrize(
    ("words", "visible", "gpus"),
    [
        ([], "", [""]),
        (["--ranks", "2"], "0,1,2,3,4", ["0,1", "2,3"]),
        ([], "3,6", "names GPU 6, and this node has 6"),
        (["--ranks", "3"], "3,5", "a trial needs 3 GPUs, and 2 are visible"),
    ],
)
def test_trials_at_a_time_and_their_gpus(words, visible, gpus, make, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(command.checks, "require_patched", lambda: "")
    monkeypatch.setattr(Worker, "run", lambda self: seen.extend(self.gpus) or EXIT_DONE)
    monkeypatch.setattr(command.devices, "installed_gpus", lambda: 6)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    code = sweep("run", make("train.seed=1").directory, *words)
    if isinstance(gpus, str):
        assert code == EXIT_USAGE and gpus in capsys.readouterr().err
    else:
        assert code == EXIT_DONE and seen == gpus


def test_a_grid_on_two_gpus(make, capsys, monkeypatch, tmp_path):
    search = make("train.seed=1,2,3", f"{RATE}=1e-4,3e-4")
    assert worker(search.directory, GPUS).run() == EXIT_DONE
    require_complete(search)
    reported = [starts(entry) for entry in search.trials()]
    assert all(len(lines) == 1 for lines in reported)
    assert {lines[0][1] for lines in reported} == {*GPUS}
    assert [entry.value for entry in search.trials()] == [0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    output = capsys.readouterr().out
    assert output.count("begins on GPU") == 6 and output.endswith("6 complete\n")
    assert output.count(": complete, valid/Loss 0.75\n") == 2
    monkeypatch.chdir(tmp_path)
    assert sweep("show", search.directory) == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["trial", "state", "epoch", "best", "mean", "deviation", "run"]
    first, _, second = search.trials()[:3]
    run = "sweep/trials/{}/20260101"
    cells = ["complete", "4", "0.25", "0.5", "0.25", run.format(first.name)]
    assert lines[3].split() == [first.name, *cells]
    assert lines[4].split() == [second.name, "complete", "4", "0.5", run.format(second.name)]
    assert worker(search.directory).run() == EXIT_DONE, "nothing is left to do"


@pytest.mark.parametrize(
    ("metric", "best"), [("train/Loss", [1, 2, 3]), ("rollout/Return", [3, 2, 1])]
)
def test_the_best_trial_and_the_best_group_come_first(metric, best, make, capsys):
    switch = "experiment.rollout.enabled=true"
    search = make(f"{RATE}=1,2,3", "train.seed=4,5", switch, metric=metric)
    for entry in search.trials():
        entry.begin()
        search.study.tell(entry.number, entry.values[RATE] + 0.1 * entry.values["train.seed"])
    assert search.best([1.0, 2.0]) == (1.0 if metric == "train/Loss" else 2.0)
    assert sweep("show", search.directory) == EXIT_DONE
    cells = [line.split() for line in capsys.readouterr().out.splitlines()[3:9]]
    assert [float(line[4]) for line in cells[::2]] == pytest.approx([rate + 0.45 for rate in best])
    values = [float(line[3]) for line in cells]
    assert values == sorted(values, reverse=metric == "rollout/Return")


def test_a_failing_trial_is_listed_and_the_others_continue(make, capsys):
    search = make("train.batch_size=12,13,14")
    failed = search.trials()[1]
    (failed.folder / "20260101").mkdir(parents=True)
    (failed.folder / "20260101" / REQUEUE).touch()  # stopped before: it has failed since
    assert worker(search.directory).run() == EXIT_REFUSED
    output = capsys.readouterr().out
    assert [entry.state for entry in search.trials()] == ["complete", "fail", "complete"]
    assert f"FAILED: ValueError: 13 samples bring no luck ({failed.log})" in output
    assert sweep("show", search.directory) == EXIT_DONE
    assert "failed: 001-batch_size_13: ValueError: 13 samples" in capsys.readouterr().out
    assert worker(search.directory).run() == EXIT_REFUSED, "it is not tried again by itself"
    assert [len(starts(entry)) for entry in search.trials()] == [1, 1, 1]


@pytest.mark.bad_input
def test_losses_that_are_not_numbers_and_runs_that_are_gone_have_rows(make, capsys):
    search = make("train.seed=1,2,98,99")
    assert worker(search.directory).run() == EXIT_REFUSED
    assert [entry.state for entry in search.trials()] == ["complete"] * 2 + ["fail"] * 2
    shutil.rmtree(search.trials()[0].folder)
    (search.trials()[1].run() / "history.jsonl").write_text("?\n?\n")
    capsys.readouterr()
    assert sweep("show", search.directory) == EXIT_DONE
    output = capsys.readouterr().out
    assert output.count("its history has no finite valid/Loss") == 2
    assert "its folder is missing" in output and "(its history is damaged)" in output


def edited(search: study.Sweep, change: Callable[[list], Any]) -> None:
    """`change` the records of the journal, as a stranger could."""
    journal = search.directory / study.JOURNAL
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    change(records)
    journal.write_text("".join(json.dumps(record) + "\n" for record in records))


def definition(records: list) -> dict:
    return next(r["user_attr"]["definition"] for r in records if "user_attr" in r)


OTHER = json.dumps({"name": "CategoricalDistribution", "attributes": {"choices": ["../.."]}})
EDITS: dict[str, Callable[[list], Any]] = {
    "a metric": lambda records: definition(records).update(metric=7),
    "values": lambda records: definition(records)["space"].update({"train.seed": OTHER}),
    "no JSON": lambda records: records[-1]["system_attrs"]["fixed_params"].update(
        {"train.seed": "../.."}
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_an_edited_journal_is_one_error(change, make):
    search = make("train.seed=1,2")
    edited(search, change)
    with pytest.raises(DataError, match=r"cannot be read as the journal of a sweep \(\w+:"):
        worker(search.directory).run()
    assert not any(search.directory.glob("trials/*"))


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_search_has_its_number_of_trials(sampler, make):
    words = (f"{RATE}=log(1e-5,1e-3)", "train.batch_size=4,8", "train.seed=int(1,9)")
    search = make(*words[: 2 if sampler == "tpe" else 3], sampler=sampler, trials=4)
    assert worker(search.directory, GPUS).run() == EXIT_DONE
    require_complete(search)
    assert [entry.number for entry in search.trials()] == [0, 1, 2, 3]
    assert all(1e-5 <= entry.values[RATE] <= 1e-3 for entry in search.trials())
    assert len({entry.name for entry in search.trials()}) == 4


def test_a_config_that_is_edited_while_trials_train_begins_no_more(make, capsys):
    """The first trial ends while the second trains, and the third would be next."""
    search = make("train.num_epochs=40,90,6")
    running = worker(search.directory, GPUS)

    def edit() -> None:
        wait_for(lambda: all(entry.run() for entry in search.trials()[:2]))
        with open(search.directory / study.CONFIG, "a") as file:
            file.write("\n")

    thread = threading.Thread(target=edit)
    thread.start()
    with pytest.raises(DataError, match="was edited after the sweep was made"):
        running.run()
    thread.join()
    assert [entry.state for entry in search.trials()] == ["complete", "complete", "waiting"]
    assert "no new trials start; 1 still training" in capsys.readouterr().out


def test_trials_that_do_not_log_the_metric_stop_after_the_first_epoch(make, capsys):
    """As IQL does, which logs no Loss: the sweep would have no result in the end."""
    search = make("train.seed=1,2,3", "train.num_epochs=90", metric="valid/actor/loss")
    with pytest.raises(DataError, match="logs no valid/actor/loss.* it logs instead: valid/Loss"):
        worker(search.directory, GPUS).run()
    assert [entry.state for entry in search.trials()] == ["running", "running", "waiting"]
    assert "no valid/actor/loss: 2 trial(s) save and stop" in capsys.readouterr().out


def test_metrics_that_no_training_logs(config, tmp_path, capsys):
    for metric in ("valid/Los", "valid/accuracy", "rollout/loss"):
        with pytest.raises(SystemExit):
            sweep("new", tmp_path / "sweep", "--config", config, "a=1", "--metric", metric)
        assert f"'{metric}' (choose from rollout/Success_Rate" in capsys.readouterr().err


@pytest.mark.bad_input
def test_running_trials_end_where_a_result_cannot_be_written(make, monkeypatch):
    search = make("train.num_epochs=6,60")
    complete, failed = Trial.complete, []

    def fail_once(trial: Trial) -> float:
        if not failed:
            failed.append(trial.number)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return complete(trial)

    monkeypatch.setattr(Trial, "complete", fail_once)
    with pytest.raises(OSError, match="No space left"):
        worker(search.directory, GPUS).run()
    assert failed == [0]
    assert [trial.state for trial in search.trials()] == ["running", "complete"]


@pytest.mark.bad_input
def test_a_full_disk_is_one_error(make, config, tmp_path, monkeypatch, capsys):
    """Optuna's error names no file."""
    search = make("train.seed=1,2")
    monkeypatch.setattr(command.checks, "require_patched", lambda: "")
    with too_large(tmp_path):
        codes = [sweep("run", search.directory)]
        codes.append(sweep("new", tmp_path / "new", "--config", config, "train.seed=1,2"))
    assert codes == [EXIT_REFUSED] * 2
    assert capsys.readouterr().err.count("the sweep cannot be read or written") == 2


@pytest.mark.bad_input
def test_a_sweep_is_made_again_after_a_full_disk(config, tmp_path, monkeypatch, capsys):
    words = ("new", tmp_path / "sweep", "--config", config, "train.seed=1,2")
    with monkeypatch.context() as full:
        full.setattr(new, "atomic_open", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
        assert sweep(*words) == EXIT_REFUSED
    assert "run the command again" in " ".join(capsys.readouterr().err.split())
    assert sweep(*words) == EXIT_DONE
    assert len(study.Sweep(tmp_path / "sweep").trials()) == 2


def test_a_training_whose_log_was_removed_fails_with_its_exit_code(make, capsys):
    search = make("train.batch_size=13")
    running = worker(search.directory)
    check = running._check

    def remove_and_check(job: Any) -> None:
        job.trial.log.unlink(missing_ok=True)
        check(job)

    running._check = remove_and_check
    assert running.run() == EXIT_REFUSED
    assert "FAILED: exit code 1" in capsys.readouterr().out


def test_two_workers_train_no_trial_twice(make):
    search = make("train.seed=1,2,3,4,5,6")
    workers = [start_worker(search), start_worker(search)]
    assert [process.wait(60) for process in workers] == [EXIT_DONE] * 2
    require_complete(search)
    assert [len(starts(entry)) for entry in search.trials()] == [1] * 6
    assert (search.directory / "worker.txt").read_text().count(": complete") == 6


@pytest.mark.parametrize(
    ("with_trainings", "epochs"),
    [(True, 5), (False, 5), (False, 0)],
    ids=["with its trainings", "alone", "alone, before they have a folder"],
)
def test_a_killed_workers_trials_continue(make, with_trainings, epochs, capsys):
    """Trainings that are not killed save and stop, and the next worker resumes them."""
    search = make("train.seed=1,2,3", "train.num_epochs=40")
    first = start_worker(search)
    wait_for(lambda: len(psutil.Process(first.pid).children()) == 2)
    wait_for(trained(search, epochs, trials=2))
    trainings = psutil.Process(first.pid).children(recursive=True)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    for process in trainings if with_trainings else ():
        process.kill()
    _, alive = psutil.wait_procs(trainings, 30)
    assert not alive
    if epochs and not with_trainings:
        assert len([*search.directory.glob("trials/*/*/requeue")]) == 2
    sweep("show", search.directory)
    assert "2 stopped, 1 waiting" in capsys.readouterr().out
    assert worker(search.directory, GPUS).run() == EXIT_DONE
    require_complete(search, 40)
    if epochs:
        assert [len(starts(entry)) for entry in search.trials()] == [2, 2, 1]


def test_the_next_worker_waits_for_a_training_that_is_ending(make, capsys):
    """It may use the GPU until then, so no other trial begins."""
    search = make("train.seed=1,2", "train.num_epochs=30")
    log = search.trials()[0].lock()
    search.trials()[0].begin()
    running = worker(search.directory)
    thread = threading.Timer(1.0, log.close)
    thread.start()
    assert running._begin_trials() and not running.jobs
    assert running.run() == EXIT_DONE
    thread.join()
    require_complete(search, 30)
    events = [line for line in capsys.readouterr().out.splitlines() if "000" in line]
    assert events[0].startswith("waiting, at most 60 s, for trainings that may be ending: 000")


def test_a_trial_that_another_worker_trains_is_left_alone(make):
    search = make("train.seed=1,2")
    log = search.trials()[0].lock()
    worker(search.directory).run()
    assert [entry.state for entry in search.trials()] == ["waiting", "complete"]
    log.close()
    assert worker(search.directory).run() == EXIT_DONE
    require_complete(search)


def test_a_run_that_was_resumed_by_hand_is_left_alone(make):
    search = make("train.seed=1,2")
    entry = search.trials()[0]
    (entry.folder / "20260101").mkdir(parents=True)
    with run_lock.take(entry.run()):
        assert worker(search.directory).run() == EXIT_DONE
    assert [entry.state for entry in search.trials()] == ["waiting", "complete"]


def test_a_training_that_outlives_its_launcher_is_not_begun_again(make, capsys):
    """As ranks do whose torchrun is killed."""
    search = make("train.seed=1", "train.num_epochs=30")
    launcher = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
    running = Worker(search, ["0"], program=["-c", launcher, TRAINING], poll=0.05)

    def kill_launcher() -> None:
        wait_for(lambda: running.jobs)
        wait_for(lambda: list((search.directory / "trials").glob("*/*/history.jsonl")))
        running.jobs[0].process.kill()

    thread = threading.Thread(target=kill_launcher)
    thread.start()
    assert running.run() == EXIT_DONE
    thread.join()
    assert "killed by SIGKILL" in capsys.readouterr().out
    require_complete(search, 30)
    assert len(starts(search.trials()[0])) == 1


def test_a_stopped_worker_stops_its_trials(make, capsys):
    search = make("train.seed=1,2,3", "train.num_epochs=60")
    first = start_worker(search)
    wait_for(lambda: all(entry.curve() for entry in search.trials()[:2]))
    first.terminate()
    assert first.wait(30) == EXIT_STOPPED
    entries = search.trials()
    assert [entry.state for entry in entries] == ["running", "running", "waiting"]
    assert (entries[0].run() / REQUEUE).exists()
    sweep("show", search.directory)
    assert capsys.readouterr().out.endswith("2 stopped, 1 waiting\n")
    assert worker(search.directory, GPUS).run() == EXIT_DONE
    require_complete(search, 60)


def test_a_worker_stops_its_trials_where_nobody_reads_what_it_prints(make):
    """Ctrl-C ends the `tee` behind it, and the end of a terminal all its output."""
    search = make("train.seed=1,2,3", "train.num_epochs=60")
    words = [sys.executable, "-m", "tests.commands.sweep_worker", search.directory, *GPUS]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    first = subprocess.Popen(words, cwd=ROOT, **pipe)
    wait_for(lambda: all(entry.curve() for entry in search.trials()[:2]))
    trainings = psutil.Process(first.pid).children()
    first.stdout.close()
    first.send_signal(signal.SIGINT)
    assert first.wait(30) == EXIT_STOPPED
    assert len(trainings) == 2 and not any(process.is_running() for process in trainings)
    assert [(entry.run() / REQUEUE).exists() for entry in search.trials()[:2]] == [True] * 2


@pytest.mark.bad_input
def test_a_torn_last_line_of_the_journal_is_repaired(make, capsys):
    search = make("train.seed=1,2")
    journal = search.directory / study.JOURNAL
    with open(journal, "ab") as file:
        file.write(b'{"op_code":6,"worker_id":"a')
    assert sweep("show", search.directory) == EXIT_DONE
    assert capsys.readouterr().out.endswith("2 waiting\n")
    assert worker(search.directory).run() == EXIT_DONE
    require_complete(study.Sweep(search.directory))
    assert all(json.loads(line) for line in journal.read_text().splitlines())


@pytest.mark.bad_input
def test_a_log_that_is_a_link_is_not_followed(make, tmp_path, monkeypatch, capsys):
    search = make("train.seed=1")
    search.trials()[0].log.symlink_to(tmp_path / "config.json")
    monkeypatch.setattr(command.checks, "require_patched", lambda: "")
    assert sweep("run", search.directory) == EXIT_REFUSED
    assert "000.txt" in capsys.readouterr().err
    assert json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize(
    ("code", "state", "queued"),
    [
        (1, "RUNNING", ""),
        (75, "RUNNING", "requeue 7_3\n"),
        (75, "CANCELLED", ""),
    ],
)
def test_a_stopped_task_of_the_slurm_array_in_the_docs_is_queued_again(
    code, state, queued, tmp_path
):
    text = (ROOT / "docs" / "sweep.md").read_text().partition("    #!/usr/bin/env bash\n")[2]
    script = "".join(line[4:] + "\n" for line in text.partition("\n\n")[0].splitlines())
    stand_ins = {
        "srun": f'[ "$*" = "robomimic-ddp sweep run /shared/DIR" ] && sleep 0.1; exit {code}',
        "scontrol": f'[ "$1" = show ] && echo "JobState={state}" || echo "$@" >>{tmp_path}/queued',
    }
    for name, content in stand_ins.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{content}\n")
        (tmp_path / name).chmod(0o755)
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **task}
    done = subprocess.run(["bash", "-c", script], env=variables, timeout=30)
    assert done.returncode == (0 if queued else code)
    assert queued == ((tmp_path / "queued").read_text() if queued else "")
    assert (tmp_path / "queued").exists() == bool(queued)
