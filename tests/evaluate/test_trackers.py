"""What TensorBoard and W&B get of an evaluation, in the logs of the run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from robomimic_ddp.commands.evaluate.record import Trackers
from tests.runs import scalars

RESULT = {"env": "lift", "log": {"Success_Rate": 0.5}}


def checkpoint(**logging):
    return SimpleNamespace(config={"experiment": {"logging": logging}}, epoch=50)


class FakeWandb:
    """What is called of wandb."""

    def __init__(self) -> None:
        self.begun, self.logged, self.metrics = [], [], []

    def init(self, **settings):
        self.begun.append(settings)
        return self

    def Settings(self, **settings):
        return settings

    def define_metric(self, *names, **settings):
        self.metrics.append((names, settings))

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.logged.append("finished")


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    wandb = FakeWandb()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return wandb


def training_has_wandb(run: Path) -> None:
    (run / "logs").mkdir()
    (run / "logs" / "wandb_run_id").write_text("abc\n")


def test_tensorboard_gets_the_results_in_a_file_of_its_own(tmp_path, wandb):
    trackers = Trackers(tmp_path)
    asked = {"log_tb": True, "log_wandb": False}
    trackers.log(checkpoint(**asked), [RESULT])
    trackers.log(checkpoint(**asked), [{**RESULT, "env": "stack"}])
    trackers.close()
    expected = {(f"Rollout/Success_Rate/{env}", 50): 0.5 for env in ("lift", "stack")}
    assert scalars(tmp_path, ".evaluation") == expected
    assert len([*(tmp_path / "logs" / "tb").iterdir()]) == 1 and not wandb.begun


def test_wandb_gets_the_results_in_the_run_of_training(tmp_path, wandb, capsys):
    asked = {"log_wandb": True, "wandb_proj_name": "lift"}
    trackers = Trackers(tmp_path)
    trackers.log(checkpoint(**asked), [RESULT])
    error = capsys.readouterr().err
    assert "are not in the run's TensorBoard or W&B" in error
    assert str(tmp_path / "logs" / "wandb_run_id") in error
    trackers.log(checkpoint(**asked), [RESULT])
    assert capsys.readouterr().err == "", "it is said once"
    training_has_wandb(tmp_path)
    for _ in range(2):
        trackers.log(checkpoint(**asked), [RESULT])
    trackers.close()
    (begun,) = wandb.begun
    shared = {"mode": "shared", "x_primary": False, "x_label": "evaluation"}
    assert begun == {
        "project": "lift",
        "dir": str(tmp_path / "logs"),
        "mode": None,
        "id": "abc",
        "resume": "allow",
        "settings": shared,
    }
    assert wandb.metrics == [(("Rollout/*",), {"step_metric": "epoch"})]
    row = {"Rollout/Success_Rate/lift": 0.5, "epoch": 50}
    assert wandb.logged == [row, row, "finished"]
    assert not (tmp_path / "logs" / "tb").exists()


@pytest.mark.bad_input
def test_wandb_that_cannot_start_is_not_tried_for_each_checkpoint(tmp_path, wandb, capsys):
    """Without a network each try takes minutes."""
    training_has_wandb(tmp_path)
    wandb.init = mock.Mock(side_effect=RuntimeError("no network"))
    trackers = Trackers(tmp_path)
    for _ in range(2):
        trackers.log(checkpoint(log_wandb=True), [RESULT])
    trackers.close()
    assert wandb.init.call_count == 1 and wandb.logged == []
    error = capsys.readouterr().err
    assert error == "warning: results are not in the run's TensorBoard or W&B: no network\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("later", [30, 0])
def test_a_disk_that_was_full_for_a_moment_loses_no_later_result(later, tmp_path, capsys):
    evaluated, trackers = checkpoint(log_tb=True), Trackers(tmp_path)
    trackers.log(evaluated, [RESULT])
    worker = trackers._writer.file_writer.event_writer._worker
    worker._record_writer.flush = mock.Mock(side_effect=OSError("No space left on device"))
    trackers.log(evaluated, [RESULT])
    worker.join(20)
    for evaluated.epoch in range(100, 100 + later):  # the queue of a thread takes 10 or 1000
        trackers.log(evaluated, [RESULT])
    trackers.close()
    logged = {epoch for _, epoch in scalars(tmp_path, ".evaluation")}
    assert logged - {50} == set(range(100, 100 + later))
    assert capsys.readouterr().err.count("the thread that writes them has ended") == 1


def test_a_mode_of_the_user_is_kept_and_older_versions_have_no_shared_runs(
    tmp_path, wandb, monkeypatch
):
    training_has_wandb(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    Trackers(tmp_path).log(checkpoint(log_wandb=True), [RESULT])
    monkeypatch.delenv("WANDB_MODE")
    for error in (TypeError, ValueError):
        wandb.Settings = mock.Mock(side_effect=error)
        Trackers(tmp_path).log(checkpoint(log_wandb=True), [RESULT])
    first, *older = wandb.begun
    assert (first["mode"], first["settings"]) == ("offline", None)
    assert [("settings" in begun, begun["mode"]) for begun in older] == [(False, None)] * 2
