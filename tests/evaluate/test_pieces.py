"""Parts of evaluate: intervals, the record, which checkpoints, the best one, every algorithm."""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from robomimic_ddp import cli, files
from robomimic_ddp.commands.evaluate import checkpoints, record
from robomimic_ddp.commands.evaluate.evaluator import Evaluator
from robomimic_ddp.commands.evaluate.record import Trackers
from robomimic_ddp.errors import EXIT_REFUSED, EXIT_USAGE, CheckpointError, DataError
from robomimic_ddp.monitoring.records import evaluation
from tests.evaluate.support import CONFIG, META, META_OF_DATASET, ScriptedPool, write
from tests.hostile import PROGRAM


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [(9, 10, 0.5958, 0.9821), (0, 10, 0.0, 0.2775), (1, 1, 0.2065, 1.0)],
)
def test_the_interval_is_wilsons(successes, episodes, low, high):
    """Expected values of statsmodels' proportion_confint(method="wilson")."""
    assert record.wilson(successes, episodes) == pytest.approx((low, high), abs=1e-4)
    assert record.wilson(20, 20)[1] == 1  # with rounding it would be larger


def read(path: Path) -> checkpoints.Checkpoint:
    return checkpoints.read(("a.pth", 1, 1), path)


def test_a_checkpoint_says_what_is_played(tmp_path):
    found = read(write(tmp_path / "model_epoch_100.pth", 100))
    names = [(env.name, env.number, env.dataset, env.env_name) for env in found.environments]
    assert names == [("lift", 0, 0, None), ("stack", 1, 0, "stack")]
    assert found.epoch == 100 and found.is_due
    assert not read(write(tmp_path / "a.pth", 50)).is_due  # warmstart
    assert read(write(tmp_path / "model_epoch_30.pth", None)).epoch == 30
    for data in ("/data/lift.hdf5", CONFIG["train"]["data"][:1]):  # before 0.5, DROID
        old = json.dumps({"experiment": {}, "train": {"data": data, "seed": 1}})
        (env,) = read(write(tmp_path / "a.pth", config=old, env_metadata=META)).environments
        assert env.name == "Lift"
    same = json.dumps({"experiment": {}, "train": {"data": [{"path": "a"}, {"path": "b"}]}})
    path = write(tmp_path / "a.pth", config=same, env_metadata=[META, META])
    (env,) = read(path).environments  # the host's dict
    assert (env.number, env.dataset) == (0, 1)
    keyed = json.dumps({"experiment": {}, "train": {"data": [{"path": "a", "key": "mine"}]}})
    path = write(tmp_path / "a.pth", config=keyed, env_metadata=[META_OF_DATASET])
    assert [env.name for env in read(path).environments] == ["mine"]


def test_robocasas_hosts_play_the_last_entry_with_its_own_horizon(tmp_path):
    """Their checkpoints have its metadata only; each entry has a horizon and `do_eval`."""
    meta = {**META, "env_lang": None}

    def played(*data):
        text = json.dumps({"experiment": {"rollout": {"horizon": 400}}, "train": {"data": data}})
        checkpoint = read(write(tmp_path / "a.pth", config=text, env_metadata=meta))
        return [(env.name, env.number, env.dataset, env.horizon) for env in checkpoint.environments]

    long, left_out = {"path": "a", "horizon": 700}, {"path": "b", "do_eval": False, "horizon": 5}
    assert played(long) == [("Lift", 0, 0, 700)]
    assert played(left_out, {"path": "c"}) == [("Lift", 0, 0, None)]
    assert played({"path": "c"}, left_out, long) == [("Lift", 1, 0, 700)]
    with pytest.raises(DataError, match="names no environment to play in"):
        played(long, left_out)


def _model(layout: str, weight: float) -> dict[str, Any]:
    nets = {"policy.net.weight": torch.tensor([1.0, weight])}
    moments = {"policy": {"state": {0: torch.rand(2)}}}
    if layout == "flat":  # hosts that save the keys of the nets
        return nets
    if layout == "hierarchical":
        return {"planner": {"nets": nets, "optimizers": moments}, "actor": {"nets": {}}}
    return {"nets": nets, "ema": None, "optimizers": moments}


LAYOUTS = pytest.mark.parametrize("layout", ["nets", "flat", "hierarchical"])


@LAYOUTS
def test_the_same_weights_are_known_in_another_file(layout, tmp_path):
    paths = [
        write(tmp_path / str(number) / "a.pth", model=_model(layout, weight))
        for number, weight in enumerate((1.0, 2.0, 1.0))
    ]
    first, other, again = (read(file).weights for file in paths)
    assert first == again != other


def test_each_copy_is_a_new_path_in_the_folder_for_copies(tmp_path):
    folder, path = tmp_path / "copies", write(tmp_path / "last.pth")
    folder.mkdir()
    one, two = (checkpoints.copy_and_read(tmp_path, path, folder)[0] for _ in range(2))
    assert one != two and one.name == two.name == "last.pth"
    assert one.parent.parent == two.parent.parent == folder


def test_best_success_has_the_epoch_of_its_result_where_the_file_has_none(tmp_path):
    """As of older hosts, which write it into names alone."""
    path, last = write(tmp_path / "best_success.pth", None), write(tmp_path / "last.pth", None)
    assert checkpoints.copy_and_read(tmp_path, path, tmp_path)[1].epoch == 0
    result = {"kind": "result", "epoch": 30, "weights": read(path).weights, "env": "lift"}
    result.update(episodes=10, checkpoint="a", interval=None, log={})
    evaluation.append(tmp_path, result)
    epochs = [checkpoints.copy_and_read(tmp_path, file, tmp_path)[1].epoch for file in (path, last)]
    assert epochs == [30, 0]


@pytest.mark.bad_input
def test_what_is_no_complete_checkpoint_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "copies"
    folder.mkdir()
    cut = write(tmp_path / "cut.pth")
    cut.write_bytes(cut.read_bytes()[:-200])
    evil = tmp_path / "evil.pth"
    evil.write_bytes(pickle.dumps(PROGRAM))
    saved = write(tmp_path / "saved.pth", model={"nets": {}, "ema": None, "a": PROGRAM})
    bare = write(tmp_path / "bare.pth", env_metadata=None)
    odd = write(tmp_path / "odd.pth", config="[" * 10**4)
    encoder = {"core_kwargs": {"backbone_class": "__import__('os').system"}}
    config = json.dumps({**CONFIG, "observation": {"encoder": {"rgb": encoder}}})
    evaluated = write(tmp_path / "evaluated.pth", config=config)
    epochs = [write(tmp_path / f"{n}.pth", epoch) for n, epoch in enumerate(("a", -1, 10**300))]
    for path in (cut, evil, saved, bare, odd, evaluated, *epochs, tmp_path / "gone.pth", tmp_path):
        try:
            checkpoints.copy_and_read(tmp_path, path, folder)
        except CheckpointError:
            assert not [*folder.iterdir()], "no copy is left"
            continue
        pytest.fail(path.name)
    assert not (tmp_path / "executed").exists()


def test_which_checkpoints_words_stand_for(tmp_path):
    names = ["models/model_epoch_1.pth", "models/model_epoch_2_best_validation_0.1.pth", "last.pth"]
    for number, name in enumerate(names):
        os.utime(write(tmp_path / name), (number, number))
    write(tmp_path / "ddp_state.pth")

    def named(*words):
        return [str(path.relative_to(tmp_path)) for path in checkpoints.select(tmp_path, words)]

    assert named("all") == [names[1], names[0], names[2]]
    assert named("last") == [names[2]] and named("best") == [names[1]]
    assert named("last", names[0], "all") == [names[2], names[0], names[1]]
    by_success = "models/model_epoch_1_lift_success_0.5.pth"
    os.utime(write(tmp_path / by_success), (0, 0))
    assert named("best") == [by_success]
    write(tmp_path / "best_success.pth")
    assert named("best") == ["best_success.pth"]
    (tmp_path / "last.pth").unlink()
    assert named("last") == [names[1]], "the newest"


def test_a_relative_path_is_that_of_the_run(tmp_path, monkeypatch):
    """The record would have the same file under two names."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs/1/last.pth")
    run = (tmp_path / "runs/1").resolve()
    (path,) = checkpoints.select(run, ["runs/1/last.pth"])
    assert checkpoints.signature(run, path)[0] == "last.pth"


@pytest.mark.bad_input
def test_a_wrong_command_line_names_what_is_there(tmp_path, capsys):
    assert cli.main(["evaluate", str(tmp_path / "none")]) == EXIT_USAGE
    run = write(tmp_path / "test/20260101000000/last.pth").parent
    assert cli.main(["evaluate", str(tmp_path)]) == EXIT_USAGE  # the folder of its runs
    assert f"that has saved one, such as {run}." in capsys.readouterr().err
    write(tmp_path / "last.pth")
    assert cli.main(["evaluate", str(tmp_path), "--checkpoints", "models/x.pth"]) == EXIT_USAGE
    assert cli.main(["evaluate", str(tmp_path), "--follow", "--checkpoints", "all"]) == EXIT_USAGE
    assert cli.main(["evaluate", str(tmp_path), "--gpus", "0"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "the run has last.pth" in said and "leave out --checkpoints" in said
    assert "this machine has 0 GPU(s)" in said


@pytest.mark.bad_input
@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
@LAYOUTS
def test_a_policy_of_weights_that_are_not_numbers_has_no_result(layout, weight, tmp_path):
    path = write(tmp_path / "a.pth", model=_model(layout, weight))
    with pytest.raises(
        CheckpointError, match="^a.pth.* in 1 tensor.s., such as .*policy.net.weight: its"
    ):
        read(path)
    checkpoints.read(("a.pth", 1, 1), path, with_weights=False)


@pytest.mark.bad_input
def test_a_checkpoint_that_names_no_environment_is_refused(tmp_path):
    """Else there would be an empty table, and exit code 0."""
    entries = json.loads(json.dumps(CONFIG))
    entries["experiment"]["additional_envs"] = None
    entries["train"]["data"] = [{"path": "x.hdf5", "eval": False}]
    of_one = {"config": json.dumps(entries), "env_metadata": [META_OF_DATASET]}
    for changes in ({"env_metadata": []}, of_one):
        with pytest.raises(DataError, match="names no environment to play in"):
            read(write(tmp_path / "a.pth", **changes))


@pytest.mark.bad_input
def test_a_policy_without_a_simulator_is_refused_before_any_process(tmp_path, capsys, monkeypatch):
    """DROID's hosts have no metadata of RLDS data."""
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    write(tmp_path / "last.pth", env_metadata={})
    for words in ([], ["--follow"]):
        assert cli.main(["evaluate", str(tmp_path), "--workers", "1", *words]) == EXIT_REFUSED
        assert "names no simulator" in capsys.readouterr().err


@pytest.mark.bad_input
def test_a_damaged_record_is_named(tmp_path):
    with record.locked(tmp_path):
        (tmp_path / evaluation.FILE_NAME).write_text('{"kind": "episode", "log": {}}\n\n{}\n')
        with pytest.raises(DataError, match="line 1, is not a record that .*it has no env"):
            evaluation.read(tmp_path)
        (tmp_path / evaluation.FILE_NAME).write_text("[]\n\n{}\n")
        with pytest.raises(DataError, match="line 1, is not a record that .*expected an object"):
            evaluation.read(tmp_path)
        with pytest.raises(DataError, match="being evaluated by another"), record.locked(tmp_path):
            pass
    (tmp_path / evaluation.FILE_NAME).write_text('{"kind')
    with record.locked(tmp_path):
        assert evaluation.read(tmp_path) == [], "a line that a killed process has cut is removed"


@pytest.mark.bad_input
def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, capsys):
    """As Lustre is without the option flock."""
    refused = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    monkeypatch.setattr(files.fcntl, "flock", mock.Mock(side_effect=refused))
    with record.locked(tmp_path):
        evaluation.append(tmp_path, {})
    warning = f"warning: {tmp_path} cannot be locked: {refused}. Evaluate it once at a time.\n"
    assert capsys.readouterr().err == warning


@pytest.mark.bad_input
def test_a_strangers_config_neither_fills_the_memory_nor_names_a_file_elsewhere(tmp_path):
    config = {"experiment": {"rollout": {"n": 10**12}, "logging": []}, "train": {"data": ""}}
    meta = {**META, "env_name": "/../../x\033"}
    found = read(write(tmp_path / "a.pth", config=json.dumps(config), env_metadata=meta))
    evaluator = Evaluator(tmp_path, tmp_path, None, Trackers(tmp_path), None, filmed=1)
    tasks = list(evaluator._tasks(tmp_path / "a.pth", found, {}))
    assert len(tasks) <= 10**5
    assert Path(tasks[0].message["video"]).parent == tmp_path / "videos" / "evaluation"
    evaluator.trackers.log(found, [])


@pytest.fixture
def scripted(tmp_path):
    """`scripted(answers)`: evaluate the next checkpoint, four episodes of each of two environments;
    return the numbers of those that were lost.
    """
    pool = ScriptedPool()
    evaluator = Evaluator(tmp_path, tmp_path / "copies", pool, Trackers(tmp_path), 4, filmed=0)
    evaluator.folder.mkdir()
    epochs = itertools.count(1)

    def evaluate(answers: str) -> list[list[int]]:
        pool.script = iter(answers)
        epoch = next(epochs)
        path = write(tmp_path / "last.pth", epoch, float(epoch))
        return [result["lost"] for result in evaluator.evaluate(path)]

    return evaluate


@pytest.mark.bad_input
def test_a_folder_of_runs_and_a_file_are_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "lift" / "20260101120000"
    run.mkdir(parents=True)
    (run / "config.json").touch()
    (run / "last.pth").touch()
    (run / "ddp.json").write_text("{}")
    (run / "policy").mkdir()
    (run / "policy" / "config.json").touch()  # as `ckpt export` writes it
    for folder in (tmp_path, tmp_path / "lift"):
        assert cli.main(["evaluate", str(folder)]) == EXIT_USAGE
        assert (
            f"is not the folder of a run. Expected one, such as {run}." in capsys.readouterr().err
        )
    assert cli.main(["evaluate", str(run / "last.pth")]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert f"robomimic-ddp evaluate {run} --checkpoints {run / 'last.pth'}" in error


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("SFFFF", "episode 0 of stack: ValueError: NaN"),
        ("SSSSDFFD", "episode 3 of stack: its process ended"),
    ],
)
def test_a_checkpoint_whose_episodes_fail_is_an_error_of_that_checkpoint(
    answers, message, scripted
):
    with pytest.raises(CheckpointError, match=f"^last.pth: 4 episodes in a row .*, {message}"):
        scripted(answers)
    assert scripted("SFFFSFFF") == [[1, 2, 3]] * 2
    assert scripted("FSFFFSSS") == [[0, 2, 3], [0]], "another checkpoint's failures count no more"


@pytest.mark.bad_input
def test_processes_that_all_die_end_the_evaluation(scripted):
    with pytest.raises(DataError, match="4 episodes in a row failed"):
        scripted("DDDD")
