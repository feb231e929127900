"""What a resumed run restores of the host's variables, and what an ended run says of resuming."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from robomimic_ddp import checkpoint
from robomimic_ddp.checkpoint import FoundRun
from robomimic_ddp.checkpoint.torch_save import save_error
from robomimic_ddp.commands.launch import checks
from robomimic_ddp.config import env
from robomimic_ddp.distributed import entry_point
from robomimic_ddp.errors import CheckpointError, Stopped, UsageError
from robomimic_ddp.monitoring.records import run_files
from robomimic_ddp.training.state import resume, state_saver
from tests.processes import rank_variables
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
        (save_error(Path("last.pth"), OSError(28, "No space left")), None, True, True),
    ],
)
def test_a_failure_says_how_to_resume(
    error, restarts_left, saved, expected, tmp_path, capsys, monkeypatch
):
    """Unless nothing was saved, torchrun does it by itself, or it was resuming that failed."""
    if restarts_left is not None:
        names = ("RUN_ID", "ERROR_FILE", "RESTART_COUNT")
        elastic = {f"TORCHELASTIC_{name}": "0" for name in names}
        for name, text in rank_variables(**elastic).items():
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


def stop_after_epoch_3(directory: Path) -> None:
    with running(directory) as run:
        run.stopper.agreed_at_last = lambda: True
        saver = state_saver.StateSaver(run, make_algo("single"))
        saver.restore()
        with pytest.raises(Stopped):
            saver.epoch_end(3)


def test_a_stop_whose_marker_cannot_be_written_says_how_to_resume(tmp_path, capsys):
    (tmp_path / run_files.REQUEUE).mkdir()
    stop_after_epoch_3(tmp_path)
    printed = capsys.readouterr()
    assert f"warning: no requeue marker in {tmp_path}: " in printed.err
    assert "stopped after epoch 3 (a signal to another rank). Resume with:" in printed.out
    assert "ROBOMIMIC_DDP_RESUME=true" in printed.out
    resume.forget_requeue(FoundRun(tmp_path, "state"))
    assert "warning: the requeue marker could not be removed: " in capsys.readouterr().err


def test_a_stop_is_noted_for_the_jobs_script_until_the_run_resumes(tmp_path, monkeypatch):
    note = tmp_path / "note"
    note.touch()
    monkeypatch.setenv(env.REQUEUE_NOTE, str(note))
    stop_after_epoch_3(tmp_path)
    assert note.read_text() == str(tmp_path / run_files.REQUEUE)
    resume.forget_requeue(FoundRun(tmp_path, "state"))
    assert note.read_text() == "" and not (tmp_path / run_files.REQUEUE).exists()


@pytest.mark.bad_input
def test_a_note_on_another_nodes_disk_is_refused(tmp_path, monkeypatch, capsys):
    """The job's script made the file, so where it is absent the script would see no other."""
    monkeypatch.setenv(env.REQUEUE_NOTE, str(tmp_path / "note"))
    with pytest.raises(UsageError, match="is not there: the job's script made it"):
        checks.require_requeue_note()
    resume.note_requeue("text")
    assert not list(tmp_path.iterdir())
    assert "this job's script will not see whether" in capsys.readouterr().err
    (tmp_path / "note").touch()
    checks.require_requeue_note()


@pytest.fixture
def saver(tmp_path):
    """The saver of a run on one rank, that has begun."""
    with running(tmp_path) as run:
        saver = state_saver.StateSaver(run, make_algo("single"))
        saver.restore()
        yield saver


def test_a_run_that_is_killed_in_something_long_is_marked_once_it_has_a_state(saver, tmp_path):
    """Before that it could not get further another time either."""
    marker = tmp_path / run_files.REQUEUE
    saver.leave_marker()
    assert not marker.exists()
    saver.epoch_end(3)
    saver.run.stopper.on_request()
    assert "during epoch 4; that epoch will be trained again" in marker.read_text()
    marker.unlink()
    saver.run.output.record = None  # a host without a folder of its run
    saver.leave_marker()
    assert not marker.exists()


def test_a_run_whose_launcher_is_lost_says_how_to_resume(saver, capsys):
    saver.epoch_end(3)
    saver.run.stopper.on_lost_launcher()
    assert "can be resumed" in capsys.readouterr().err


@pytest.mark.parametrize("last", [3, 4])
def test_the_last_epoch_is_saved_where_no_state_is_due(last, saver):
    saver.epoch_end(2)
    saver.next_save = math.inf
    saver.run.progress.last_epoch = last
    saver.epoch_end(3)
    assert saver.is_saved == (last == 3)


def test_a_copy_that_cannot_be_kept_is_warned_of_once(saver, monkeypatch, capsys):
    monkeypatch.setattr(state_saver.checkpoint, "write", lambda *_: ["no copy"])
    for epoch in (1, 2):
        saver.epoch_end(epoch)
    assert capsys.readouterr().err.count("warning: no copy. Training continues.") == 1


def test_a_host_without_a_folder_of_its_run_stops_without_a_marker(saver, tmp_path):
    saver.run.output.record = None
    saver.run.stopper.agreed_at_last = lambda: True
    with pytest.raises(Stopped):
        saver.epoch_end(3)
    assert not (tmp_path / run_files.REQUEUE).exists()


def test_the_end_of_a_run_saves_what_is_not_saved_yet_and_waits_for_the_files(
    saver, monkeypatch, capsys
):
    saves, places, waits = [], [], []
    save = saver._hand_over
    monkeypatch.setattr(saver, "_hand_over", lambda *args: saves.append(args) or save(*args))
    monkeypatch.setattr(state_saver.watchdog, "reached", places.append)
    flush = lambda *seconds: waits.append(seconds) or not seconds  # noqa: E731
    monkeypatch.setattr(saver.run.output.writer, "flush", flush)
    saver.epoch_end(3)
    saver.finish()
    assert len(saves) == 1, "the state of the last epoch has been saved"
    where = state_saver.watchdog.SAVING
    assert places == [f"{where}the state after epoch 3", f"{where}the last files"]
    assert waits == [(5.0,), ()] and "the last files are being written" in capsys.readouterr().out
    saver.is_saved = False
    saver.finish()
    assert len(saves) == 2


def test_a_run_that_has_finished_no_epoch_starts_over_and_says_so(tmp_path, capsys):
    (tmp_path / "history.jsonl").write_text('{"epoch": 1, "phase": "train", "log": {}}\n')
    with running(tmp_path, FoundRun(tmp_path, "begun")) as run:
        assert state_saver.StateSaver(run, make_algo("single")).restore() is None
    said = f"no epoch was finished: training starts over in {tmp_path}"
    assert said in capsys.readouterr().out
    assert (tmp_path / "history.jsonl").read_text() == "", "epoch 1 is trained again"


def test_lines_of_epochs_that_are_trained_again_are_removed(tmp_path):
    def line(epoch):
        return json.dumps({"epoch": epoch, "log": {"b": 1, "a": 2}, "phase": "train"}) + "\n"

    path = tmp_path / "history.jsonl"
    path.write_text(line(1) + line(2) + line(3) + line(3)[:9])
    resume.trim_history(tmp_path, 2)
    assert [json.loads(text)["epoch"] for text in path.read_text().splitlines()] == [1, 2]
    assert path.read_text().endswith("\n")
    assert path.read_text().startswith('{"epoch": 1, "log": {"a": 2, "b": 1}')


def test_a_command_to_resume_comes_after_the_files_that_are_being_written(tmp_path, monkeypatch):
    """Until then there may be no state to resume from."""
    with running(tmp_path) as run:
        state = tmp_path / checkpoint.STATE
        waits, shown = [], []
        flush = lambda seconds: waits.append(seconds) or state.touch()  # noqa: E731
        monkeypatch.setattr(run.output.writer, "flush", flush)
        monkeypatch.setattr(resume, "print_clean", lambda text, file: shown.append(text))
        resume.print_resume_command(run)
    assert len(shown) == 1 and "can be resumed" in shown[0]
    assert waits == [checkpoint.EXIT_SECONDS], "torchrun kills the rank soon after"


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
    assert life(tmp_path, found, best_return=None, best_loss={}) == ({}, 1.5)


def test_without_a_run_variables_are_the_hosts():
    default = {"lift": 1.0}
    assert resume.restored("returns", default) is default
