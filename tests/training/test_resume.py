"""What a resumed run restores, counts and says, with stand-ins for the run and its state."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from robomimic_ddp import checkpoint
from robomimic_ddp.distributed import entry_point
from robomimic_ddp.errors import CheckpointError, Stopped
from robomimic_ddp.monitoring import history
from robomimic_ddp.training import resume
from robomimic_ddp.training import run as _run
from robomimic_ddp.training.state_saver import StateSaver


class Part(SimpleNamespace):
    """A loader that stands inside a pass."""

    def __len__(self):
        return 10


def saver(loader=None, samples_per_step=8, **run):
    """A StateSaver whose construction would need a whole run."""
    made = StateSaver.__new__(StateSaver)
    plan = SimpleNamespace(samples_per_step=samples_per_step, world_size=1)
    made.run = SimpleNamespace(plan=plan, loaders={"train": loader}, **run)
    return made


@pytest.mark.parametrize(
    "loader, inside, samples_per_step, total",
    [
        (Part(batches_left=lambda: 3), {"steps": 4, "total": 10}, 8, 4 + 3),
        (Part(batches_left=lambda: 3), {"steps": 4}, 8, 4 + 3),
        (Part(batches_left=lambda: 10), {"steps": 10, "total": 10}, 8, 10),
        (Part(batches_left=lambda: 10), {"steps": 11, "total": 10}, 8, 11),
        (Part(), {"steps": 4, "total": 9}, 8, 9),
        (Part(), {"steps": 4}, 8, 10),
        (Part(), {"steps": 4, "total": 9}, 4, 4 + 5 * 2),
        (Part(), {"steps": 4, "total": 9}, 16, 4 + 3),
    ],
)
def test_steps_of_an_epoch_that_is_a_pass(loader, inside, samples_per_step, total):
    saved = {"inside": inside, "samples_per_step": 8}
    assert saver(loader, samples_per_step)._new_total(saved) == total


@pytest.mark.parametrize("own, place", [({"data": "own"}, "own"), (None, "of rank 0"), ({}, None)])
def test_a_rank_that_did_not_exist_takes_the_main_ranks_place(own, place):
    went = []
    loader = Part(go_to=lambda *place: went.append(place) or "data: there")
    saved = {"ranks": [{"data": "of rank 0"}], "world_size": 3, "epoch": 5}
    if place is None:
        assert "cannot be found again" in saver(None)._restore_data(saved, own)
    else:
        assert saver(loader)._restore_data(saved, own) == "data: there"
        assert went == [(place, 3, 5)]


def test_the_best_values_are_those_of_the_epoch_loop():
    made = saver(resume=checkpoint.Resume(variables={"best_loss": None, "best_return": {}}))
    assert saver(resume=checkpoint.Resume())._best_values() == {}

    def save():
        return made._best_values()

    def loop():
        best_loss, best_return = 0.5, {"reach": torch.tensor(2.0).item()}
        best_loss /= 2
        found = save()
        return found, [best_return for _ in range(1)]

    def bare():
        return save()

    assert loop()[0] == {"best_loss": 0.25, "best_return": {"reach": 2.0}}

    def exact():
        best_loss, best_return = 1.0, {}
        return save(), best_loss, best_return

    assert exact() == ({"best_loss": 1.0, "best_return": {}}, 1.0, {})
    assert bare() == {}


@pytest.mark.parametrize("saved", [None, {"epoch": 3}])
def test_a_marker_is_left_where_there_is_something_to_resume(saved, tmp_path):
    made = saver(
        record=SimpleNamespace(content={"saved": saved}),
        stopper=SimpleNamespace(heard="SIGUSR1"),
        directory=tmp_path,
    )
    made.finished = 3
    made.leave_marker()
    marker = tmp_path / checkpoint.REQUEUE_NAME
    assert marker.exists() == (saved is not None)
    if saved:
        stopped = "in the midst of epoch 4, which is lost"
        expected = {"stopped": stopped, "signal": "SIGUSR1", "saved": saved}
        assert json.loads(marker.read_text()) == expected
    made.run.record = None
    made.leave_marker()


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize(
    ("error", "restarts_left", "is_told"),
    [
        (ValueError("no luck"), None, True),
        (ValueError("no luck"), "0", True),
        (ValueError("no luck"), "2", False),
        (CheckpointError("another run"), None, False),
    ],
)
def test_a_failure_says_how_to_resume(
    error, restarts_left, is_told, saved, tmp_path, capsys, monkeypatch
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
    with pytest.raises(type(error)), resume.hint_on_failure(SimpleNamespace(directory=tmp_path)):
        raise error
    assert ("can be resumed" in capsys.readouterr().err) is (is_told and saved)


def test_a_killed_launcher_says_how_to_resume(tmp_path, capsys):
    (tmp_path / checkpoint.STATE).touch()
    with resume.hint_on_failure(SimpleNamespace(directory=tmp_path)):
        (say,) = entry_point._last_words
        say()
    assert "can be resumed" in capsys.readouterr().err
    assert not entry_point._last_words


@pytest.mark.parametrize(
    "heard, signal", [("SIGUSR1", "SIGUSR1"), (None, "a signal to another rank")]
)
def test_a_stop_leaves_a_marker_and_says_how_to_resume(heard, signal, tmp_path, capsys):
    made = saver(
        record=SimpleNamespace(content={"saved": {"epoch": 3}}),
        stopper=SimpleNamespace(heard=heard),
        directory=tmp_path,
    )
    with pytest.raises(Stopped):
        made._stop("after epoch 3")
    content = json.loads((tmp_path / checkpoint.REQUEUE_NAME).read_text())
    assert content == {"stopped": "after epoch 3", "signal": signal, "saved": {"epoch": 3}}
    said = capsys.readouterr().out
    here = shlex.quote(str(Path.cwd()))
    assert f"stopped after epoch 3 ({signal}). Resume with:\n  cd {here} && " in said
    assert "ROBOMIMIC_DDP_RESUME=true" in said
    made.run.directory = tmp_path / "gone"
    with pytest.raises(Stopped):
        made._stop("after epoch 3")
    assert "warning: no requeue marker" in capsys.readouterr().err


# --- what is said


def said(tmp_path, world=2, samples=8, rates=((0.1, 0.2),), **changes):
    """The sentences of a run that resumes after epoch 4."""
    saved = {
        "epoch": 4,
        "inside": None,
        "steps": 99,
        "save_id": "0123456789",
        "world_size": 2,
        "samples_per_step": 8,
        "learning_rates": [[0.1, 0.2]],
        "export": None,
        **changes,
    }
    run = SimpleNamespace(
        plan=SimpleNamespace(world_size=world, samples_per_step=samples),
        resume=checkpoint.Resume(SimpleNamespace(directory=tmp_path)),
        learning_rates=rates,
    )
    weight = torch.nn.Parameter(torch.zeros(1))
    model = SimpleNamespace(optimizers={"policy": torch.optim.SGD([weight], lr=0.025)})
    return list(resume.changes(run, model, saved, "data: there"))


ALWAYS = ["data: there", "learning rate: 0.025, as saved"]


def test_a_run_that_has_not_changed(tmp_path):
    first, *rest = said(tmp_path)
    assert first == f"resuming training from epoch 5, step 99 of the run in {tmp_path}"
    assert rest == ALWAYS
    stopped = said(tmp_path, inside={"steps": 3})[0]
    assert "from epoch 5, after 3 steps of it, step 99 of the run" in stopped


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"world": 4}, "world size: 2 -> 4; ranks 2 to 3 begin new random streams"),
        ({"world": 1}, "world size: 2 -> 1"),
        ({"samples": 12}, "samples per step: 8 -> 12"),
        (
            {"rates": ((0.1, 0.4),)},
            "learning rate: the present config and ranks would give 0.4; not applied, since a "
            "resumed learning rate is never changed silently",
        ),
        (
            {"export": "other"},
            "note: last.pth was not written together with the saved state (the run ended between "
            "the two, or the file was changed); the state alone is used",
        ),
    ],
)
def test_each_change_is_one_line(changes, line, tmp_path):
    assert set(said(tmp_path, **changes)[1:]) - set(ALWAYS) == {line}


# --- start


@pytest.fixture
def current():
    run = SimpleNamespace(resume=checkpoint.Resume())
    token = _run._current.set(run)
    yield run
    _run._current.reset(token)


def test_a_hosts_variable_has_its_saved_value(current):
    current.resume.found = SimpleNamespace(kind="state")
    current.resume.saved = {"best": {"loss": 0.25, "returns": {"lift": 3.0}, "other": None}}
    assert resume.restored("loss", None) == 0.25
    assert resume.restored("returns", {"lift": -1.0, "reach": -1.0}) == {"lift": 3.0, "reach": -1.0}
    assert resume.restored("other", {"lift": 1}) is None
    assert resume.restored("new", -7.0) == -7.0
    assert current.resume.variables == {
        "loss": None, "returns": {"lift": -1.0, "reach": -1.0}, "other": {"lift": 1}, "new": -7.0
    }  # fmt: skip


@pytest.mark.parametrize(
    "found", [None, SimpleNamespace(kind="host"), SimpleNamespace(kind="begun")]
)
def test_without_a_state_variables_begin(found, current):
    current.resume.found = found
    current.resume.saved = {"best": {"loss": 0.25}}
    assert resume.saved_state(current) is None
    assert resume.restored("loss", 1.5) == 1.5 and current.resume.variables == {"loss": 1.5}


def test_without_a_run_variables_are_the_hosts():
    default = {"lift": 1.0}
    assert resume.restored("returns", default) is default


def test_a_state_is_read_once_and_its_notes_are_printed(current, monkeypatch, capsys):
    current.resume.found = SimpleNamespace(kind="state", directory="folder")
    read = []

    def reading(directory):
        read.append(directory)
        return {"best": {}, "model": {"net": 1}}, ["one", "two"]

    def broadcast(nest):
        assert nest == {"best": {}}, "a model is large, and stays with the main rank"
        return nest

    looked_at = []
    monkeypatch.setattr(checkpoint, "read", reading)
    monkeypatch.setattr(checkpoint, "require_complete", lambda *given: looked_at.append(given[1]))
    monkeypatch.setattr(resume.tree_collectives, "broadcast", broadcast)
    for _ in range(2):
        assert resume.saved_state(current)["model"] == {"net": 1}
    assert read == looked_at == ["folder"]
    assert capsys.readouterr().err == "warning: one\nwarning: two\n"


def lines(*epochs):
    record = {"phase": "train", "log": {"b": 1, "a": 2}}
    return "".join(json.dumps({"epoch": one, **record}) + "\n" for one in epochs)


def test_history_of_epochs_that_are_trained_again_is_removed(tmp_path, capsys):
    path = tmp_path / history.FILE_NAME
    resume.trim_history(tmp_path, 2)
    assert not path.exists()
    path.write_text(lines(None, 1, 2, 2, 3) + '{"epoch": 4, "lo')
    resume.trim_history(tmp_path, 2)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["epoch"] for record in records] == [None, 1, 2, 2]
    assert path.read_text().splitlines()[1] == (
        '{"epoch": 1, "log": {"a": 2, "b": 1}, "phase": "train"}'
    )
    assert capsys.readouterr().err == ""


def test_a_marker_that_cannot_be_removed_is_a_warning(tmp_path, capsys):
    resume.forget_requeue(None)
    found = SimpleNamespace(directory=tmp_path)
    resume.forget_requeue(found)  # there is none
    (tmp_path / checkpoint.REQUEUE_NAME).mkdir()
    resume.forget_requeue(found)
    assert "warning: the requeue marker stays: " in capsys.readouterr().err


def test_only_the_main_rank_says(monkeypatch, capsys):
    resume.say("a line")
    monkeypatch.setattr(resume.group, "is_main", lambda: False)
    resume.say("another")
    assert capsys.readouterr().out == "a line\n"
