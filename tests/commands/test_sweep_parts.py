"""Parts of `robomimic-ddp sweep`: values and names, the journal's end, curves, one training."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from unittest import mock

import pytest
from optuna.study import StudyDirection

from robomimic_ddp.commands import training_process
from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE
from robomimic_ddp.commands.sweep import journal, space, study
from robomimic_ddp.commands.sweep.worker import Worker
from robomimic_ddp.config import machine
from robomimic_ddp.config.host.dotlist import parse_dotlist
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, EXIT_STOPPED, DataError, UsageError
from robomimic_ddp.monitoring.records.run_files import RECORD, REQUEUE


def test_ranges_are_drawn_as_they_are_written():
    drawn = space.parse(["a=log(1e-5,1e-3)", "b=uniform(-1,2)", "c=int(2,9)"])
    assert [(of.low, of.high, of.log) for of in drawn.values()] == [
        (1e-5, 1e-3, True),
        (-1, 2, False),
        (2, 9, False),
    ]
    with pytest.raises(UsageError, match="two finite numbers"):
        space.parse(["a=uniform(-1e308,1e308)"])


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"optim.type": "adam", "net.name": "x"}, "optim_adam-net_x"),
        ({"name": 5, "a.initial": 1 / 3, "b.enabled": True}, "name_5-a_0.3333-b_True"),
        ({"a": "x" * 500}, "a_" + "x" * 118),
        ({"algo.dims": [256, "a/b"]}, "dims__256_a_b"),
        ({"a.actor.size": 1, "a.critic.size": 2}, "a.actor.size_1-a.critic.size_2"),
        ({"a": "../../\x1b[31m~"}, "a_.._.._31m"),
        ({}, "trial"),
    ],
)
def test_names_of_trials(values, name):
    assert space.trial_name(12, values) == f"012-{name}"


def test_words_of_a_command_line_have_every_character():
    settings = {"train": {"output_dir": "/data/\U0001f916 \u00fc # [a]: b"}}
    assert parse_dotlist(space.dot_list({"train.output_dir": settings["train"]["output_dir"]})) == (
        settings
    )


def test_a_journal_is_locked_beside_it_while_a_line_is_written(tmp_path, monkeypatch):
    """All processes of a sweep share the lock, wherever they were started."""
    locks, symlink = [], os.symlink
    monkeypatch.setattr(
        os, "symlink", lambda target, lock: locks.append(Path(lock)) or symlink(target, lock)
    )
    journal.storage(tmp_path / "journal").create_new_study([StudyDirection.MINIMIZE], "a")
    assert locks and {(lock.parent, lock.exists()) for lock in locks} == {(tmp_path, False)}


@pytest.mark.bad_input
def test_a_journal_that_cannot_be_repaired_does_not_stay_locked(tmp_path, monkeypatch):
    storage = journal.storage(tmp_path / "journal")
    with monkeypatch.context() as broken, pytest.raises(OSError, match="no disk"):
        broken.setattr(journal, "_remove_half_line", mock.Mock(side_effect=OSError("no disk")))
        storage.create_new_study([StudyDirection.MINIMIZE], "a")
    assert os.listdir(tmp_path) == ["journal"], "the next writer would wait for half a minute"


def write_run(trial: study.Trial, name: str, *lines: tuple[int, str, dict]) -> Path:
    run = trial.folder / name
    run.mkdir(parents=True)
    records = [{"epoch": epoch, "phase": phase, "log": log} for epoch, phase, log in lines]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run / "history.jsonl").write_text(text)
    return run


@pytest.mark.parametrize(("metric", "best"), [("rollout/Return", 1.5), ("train/Loss", 0.25)])
def test_a_trial_is_as_good_as_its_best_epoch_over_its_environments(metric, best, make):
    made = make("train.seed=1", "experiment.rollout.enabled=true", metric=metric)
    (trial,) = made.trials()
    assert trial.run() is None and trial.curve() == {}
    write_run(
        trial,
        "20260101",
        (1, "rollout", {"Return": 1.0}),
        (1, "rollout", {"Return": 2.0}),
        (1, "train", {"Loss": 0.25, "Return": 9.0}),
        (2, "rollout", {"Return": math.nan}),
        (3, "rollout", {"Return": "failed", "Loss": 0.0}),
        (4, "train", {"Loss": 0.5}),
        (4, "rollout", {"Return": 1.25}),
    )
    expected = {1: 1.5, 4: 1.25} if metric == "rollout/Return" else {1: 0.25, 4: 0.5}
    assert trial.curve() == expected
    assert trial.begin().complete() == best
    again = trial.reread()
    assert (again.state, again.value) == ("complete", best)


def test_a_loss_of_another_name_is_a_metric(make):
    search = make("train.seed=1", metric="valid/critic/critic1_loss")
    (trial,) = search.trials()
    assert not trial.require_metric() and not search.maximizes
    logs = [{"critic/critic1_loss": loss, "vf/v_loss": 0.0} for loss in (2.0, 1.0)]
    write_run(trial, "20260101", *((epoch, "valid", log) for epoch, log in enumerate(logs)))
    assert trial.require_metric()
    assert trial.begin().complete() == 1.0


@pytest.mark.parametrize(
    ("log", "losses"),
    [({"actor/loss": 1.0, "vf/v_loss": 2.0}, "valid/actor/loss, valid/vf/v_loss"), ({}, "none")],
)
def test_an_epoch_without_the_metric_names_the_losses_that_it_has(log, losses, make):
    (trial,) = make("train.seed=1").trials()
    write_run(trial, "20260101", (1, "train", {}), (1, "valid", {**log, "actor/log_prob": 3.0}))
    with pytest.raises(DataError, match=f"logs no valid/Loss.* logs instead: {losses}\\. Make"):
        trial.require_metric()


def test_a_trials_run_is_the_newest_that_was_trained(make):
    (trial,) = make("train.seed=1").trials()
    older, newer = write_run(trial, "20260101"), write_run(trial, "20260102")
    (trial.folder / "notes.txt").touch()
    assert trial.run() == newer and not trial.is_finished
    (older / RECORD).write_text("{}")
    assert trial.run() == older and not trial.is_finished
    (older / RECORD).write_text('{"outcome": {}}')
    assert trial.is_finished


def test_a_training_has_its_gpus_ranks_and_share_of_the_cores(make, monkeypatch):
    started = []
    monkeypatch.setattr(training_process, "start", lambda *call: started.append(call))
    monkeypatch.setattr(machine, "usable_cores", lambda: 13)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pod = {"RANK", "WORLD_SIZE", "MASTER_PORT", "PET_NNODES"}  # of a Kubernetes job
    for name in pod:
        monkeypatch.setenv(name, "2")
    made = make("train.seed=5")
    (trial,) = made.trials()
    for ranks, threads in ((1, "6"), (2, "3"), (7, "1")):
        trial = trial.begin()
        Worker(made, ["0,1", "2,3"], ranks)._start_training(trial, "2,3", None)
        words, _, variables, _ = started.pop()
        assert variables["CUDA_VISIBLE_DEVICES"] == "2,3"
        assert variables["OMP_NUM_THREADS"] == threads
        assert not pod & variables.keys()
        assert ("torch.distributed.run" in words) == (f"--nproc_per_node={ranks}" in words)
        assert ("torch.distributed.run" in words) == (ranks > 1)
        assert words[-7:] == [
            "-m",
            DOT_LIST_MODULE,
            f"load_from={made.directory / study.CONFIG}",
            "train.seed=5",
            f'train.output_dir="{trial.folder.parent}"',
            f'experiment.name="{trial.name}"',
            'ddp.resume="auto"',
        ]


def test_a_training_renders_on_its_gpu(make, monkeypatch):
    """Not on the first one, as all would by default; the user's choice stays."""
    names = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    started = []
    monkeypatch.setattr(training_process, "start", lambda *call: started.append(call[2]))
    made = make("train.seed=5")
    (trial,) = made.trials()
    trial = trial.begin()
    for chosen, gpus, numbers in ((None, "3", ["3", "3"]), ("1", "3", ["1", "3"]), (None, "", [])):
        with monkeypatch.context() as patch:
            if chosen:
                patch.setenv(names[0], chosen)
            Worker(made, ["2", gpus])._start_training(trial, gpus, None)
        variables = started.pop()
        assert [variables[name] for name in names if name in variables] == numbers


def test_a_training_with_a_marker_has_stopped_whatever_its_exit_code(make, capsys):
    """torchrun's own exit code is 1 where its ranks have stopped on request."""
    new_study = make("train.seed=1")
    (trial,) = new_study.trials()
    marker = write_run(trial, "20260101") / REQUEUE
    program = ["-c", f"open({str(marker)!r}, 'w'); raise SystemExit(1)"]
    assert Worker(new_study, [""], program=program, poll=0.01).run() == EXIT_STOPPED
    assert ": stopped; the next sweep run resumes it" in capsys.readouterr().out
    assert new_study.trials()[0].state == "running"


@pytest.mark.parametrize("end", ["raise SystemExit(1)", "import os; os.kill(os.getpid(), 11)"])
def test_a_finished_trial_is_complete_although_its_processes_crash_at_their_end(end, make):
    """As a driver may, or EGL, when Python exits."""
    new_study = make("train.seed=1")
    (trial,) = new_study.trials()
    record = write_run(trial, "20260101", (1, "valid", {"Loss": 0.5})) / RECORD
    program = ["-c", f"open({str(record)!r}, 'w').write('{{\"outcome\": {{}}}}'); {end}"]
    assert Worker(new_study, [""], program=program, poll=0.01).run() == EXIT_DONE
    assert trial.reread().value == 0.5


def test_a_training_that_is_killed_again_and_again_fails(make, capsys):
    made = make("train.seed=1")
    program = ["-c", "import os; os.kill(os.getpid(), 9)"]
    assert Worker(made, [""], program=program, poll=0.01).run() == EXIT_REFUSED
    output = capsys.readouterr().out
    assert output.count(": begins on the CPU\n") + output.count(": resumes on the CPU\n") == 4
    assert output.count(": killed by SIGKILL\n") == 3
    assert made.trials()[0].error == "killed by SIGKILL"
