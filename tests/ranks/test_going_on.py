"""What a run that goes on finds in its folder: an old marker, a damaged history; what cannot be
kept.
"""

from __future__ import annotations

import contextlib
import io
import json
from types import SimpleNamespace
from unittest import mock

import pytest

from robomimic_ddp import env, group, history, host_config, resume, state
from robomimic_ddp.errors import CheckpointError, Stopped
from robomimic_ddp.resume import start
from robomimic_ddp.state import BEST, STATE, Found
from robomimic_ddp.state.files import read_file
from tests.ranks.test_keeper import running, train
from tests.ranks.toy import make_algo


def attempts(experiment, asked, counts):
    """What `decide` says in each of torchrun's attempts of one job."""
    run = SimpleNamespace(options=SimpleNamespace(values=SimpleNamespace(resume=asked)), found=None)
    said = []
    for count in counts:
        launch = SimpleNamespace(restart_count=count, run_id="old")
        with mock.patch.object(host_config, "experiment_directory", lambda config: experiment):
            with mock.patch.object(env, "read_launch_env", lambda launch=launch: launch):
                try:
                    start.decide(None, run, False, False)
                    said.append(run.found.kind)
                except Stopped:
                    said.append("stopped")
    return said


@pytest.fixture
def stopped(tmp_path):
    """The folder of experiments, with one run that was stopped on request."""
    directory = tmp_path / "20260101"
    directory.mkdir()
    (directory / STATE).write_bytes(b"x")
    (directory / "ddp.json").write_text(json.dumps({"job": "old", "paths": ["a"]}))
    state.write_requeue(directory, {"stopped": "in epoch 2"})
    return tmp_path


def test_a_resumed_job_that_dies_while_it_starts_is_started_again(ranks, stopped):
    assert ranks.run(attempts, stopped, True, (0, 1)) == [["state", "state"]] * 2
    assert not (stopped / "20260101" / state.REQUEUE_NAME).exists()


@pytest.mark.parametrize("asked", [True, False])
def test_a_job_that_was_stopped_is_not_started_again(stopped, asked):
    assert attempts(stopped, asked, (1,)) == ["stopped"]
    assert (stopped / "20260101" / state.REQUEUE_NAME).exists()


def go_on(directory):
    errors = io.StringIO()
    with running(directory, Found(directory, "state")) as run:
        keeper = resume.Keeper(run, make_algo())
        with contextlib.redirect_stderr(errors):
            return keeper.restore(), errors.getvalue()


def line(epoch):
    return json.dumps({"epoch": epoch, "phase": "train", "log": {}}) + "\n"


@pytest.mark.parametrize("damaged", ["not JSON\n", line("two")])
def test_a_damaged_history_does_not_stop_a_good_state(ranks, tmp_path, damaged):
    ranks.run(train, tmp_path, [0.5, 0.4])
    text = line(1) + damaged + line(2)
    (tmp_path / history.FILE_NAME).write_text(text)
    (epoch, warned), other = ranks.run(go_on, tmp_path)
    assert epoch == 2 and other == (2, "")
    assert warned.count("warning:") == 1 and "The run goes on" in warned
    assert (tmp_path / history.FILE_NAME).read_text() == text


def save_what_a_file_cannot_hold(directory):
    with running(directory) as run:
        algo = make_algo()
        if group.is_main():
            algo.optimizers["policy"].param_groups[0]["odd"] = object()
        keeper = resume.Keeper(run, algo)
        try:
            keeper.epoch_end(1)
        except CheckpointError as error:
            return str(error)


def test_what_a_file_cannot_hold_is_an_error_at_the_first_save(ranks, tmp_path):
    told = ranks.run(save_what_a_file_cannot_hold, tmp_path)
    assert told[0] == told[1] and "is a object, which a state file cannot hold" in told[0]


def nothing_is_measured(directory):
    with running(directory) as run:
        keeper = resume.Keeper(run, make_algo())
        best_valid_loss = resume.restored("best_valid_loss", None)
        best_return = resume.restored("best_return", {"reach": -1.0})
        keeper.restore()
        for epoch in (1, 2, 3):
            if epoch == 2:
                best_return["reach"] = 0.5
            keeper.epoch_end(epoch)
        return best_valid_loss


def test_the_best_state_is_of_an_epoch_that_was_better(ranks, tmp_path):
    ranks.run(nothing_is_measured, tmp_path)
    assert read_file(tmp_path / BEST)["epoch"] == 2


def test_without_a_measure_there_is_no_best_state(ranks, tmp_path):
    ranks.run(unmeasured, tmp_path)
    assert (tmp_path / STATE).exists() and not (tmp_path / BEST).exists()


def unmeasured(directory):
    with running(directory) as run:
        keeper = resume.Keeper(run, make_algo())
        best_valid_loss = resume.restored("best_valid_loss", None)
        keeper.restore()
        keeper.epoch_end(1)
        return best_valid_loss
