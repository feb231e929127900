"""What a resumed run restores of the host's variables, and what an ended run says of resuming."""

from __future__ import annotations

import pytest

from robomimic_ddp import checkpoint
from robomimic_ddp.checkpoint import FoundRun
from robomimic_ddp.distributed import entry_point
from robomimic_ddp.errors import CheckpointError, Stopped
from robomimic_ddp.training.state import resume, state_saver
from tests.ranks.running import running
from tests.ranks.toy import make_algo


@pytest.mark.parametrize(
    ("error", "restarts_left", "saved", "expected"),
    [
        (ValueError("no luck"), None, True, True),
        (ValueError("no luck"), "0", True, True),
        (ValueError("no luck"), None, False, False),
        (ValueError("no luck"), "2", True, False),
        (CheckpointError("another run"), None, True, False),
    ],
)
def test_a_failure_says_how_to_resume(
    error, restarts_left, saved, expected, tmp_path, capsys, monkeypatch
):
    """Unless nothing was saved, torchrun does it by itself, or it was resuming that failed."""
    if restarts_left is not None:
        launch = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
        names = ("RUN_ID", "ERROR_FILE", "RESTART_COUNT")
        elastic = {f"TORCHELASTIC_{name}": "0" for name in names}
        for name, text in {**launch, "MASTER_PORT": "1", **elastic}.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts_left)
    if saved:
        (tmp_path / checkpoint.STATE).touch()
    with running(tmp_path) as run, pytest.raises(type(error)), resume.hint_on_failure(run):
        raise error
    assert ("can be resumed" in capsys.readouterr().err) is expected


def test_a_killed_launcher_says_how_to_resume(tmp_path, capsys):
    (tmp_path / checkpoint.STATE).touch()
    with running(tmp_path) as run, resume.hint_on_failure(run):
        (say,) = entry_point._last_words
        say()
    assert "can be resumed" in capsys.readouterr().err
    assert not entry_point._last_words


def test_a_stop_whose_marker_cannot_be_written_says_how_to_resume(tmp_path, capsys):
    (tmp_path / checkpoint.REQUEUE_NAME).mkdir()
    with running(tmp_path) as run:
        run.stopper.agreed_at_last = lambda: True
        saver = state_saver.StateSaver(run, make_algo("single"))
        saver.restore()
        with pytest.raises(Stopped):
            saver.epoch_end(3)
    printed = capsys.readouterr()
    assert f"warning: no requeue marker in {tmp_path}: " in printed.err
    assert "stopped after epoch 3 (a signal to another rank). Resume with:" in printed.out
    assert "ROBOMIMIC_DDP_RESUME=true" in printed.out
    resume.forget_requeue(FoundRun(tmp_path, "state"))
    assert "warning: the requeue marker could not be removed: " in capsys.readouterr().err


def life(directory, found=None, **variables):
    """The host's variables as train() begins with them. It changes none, and saves one epoch."""
    with running(directory, found) as run:
        saver = state_saver.StateSaver(run, make_algo("single"))
        best_return = resume.restored("best_return", variables["best_return"])
        best_loss = resume.restored("best_loss", variables["best_loss"])
        saver.restore()
        saver.epoch_end(1)
        return best_return, best_loss


def test_a_hosts_variable_has_its_saved_value(tmp_path):
    """A dictionary gets the saved entries over its own: an environment may be new."""
    begins = {"best_return": {"lift": 3.0}, "best_loss": 0.25}
    assert life(tmp_path, **begins) == ({"lift": 3.0}, 0.25)
    found = FoundRun(tmp_path, "state")
    resumed = life(tmp_path, found, best_return={"lift": -1.0, "reach": -1.0}, best_loss=None)
    assert resumed == ({"lift": 3.0, "reach": -1.0}, 0.25)
    for kind in ("begun", "host"):
        begins = {"best_return": {}, "best_loss": 1.5}
        assert life(tmp_path, FoundRun(tmp_path, kind), **begins) == ({}, 1.5)


def test_without_a_run_variables_are_the_hosts():
    default = {"lift": 1.0}
    assert resume.restored("returns", default) is default
