"""What ranks tell of themselves while they train, and what `robomimic-ddp watch` makes of it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time

import pytest
import torch

from robomimic_ddp import api, cli
from robomimic_ddp.checkpoint import state_file
from robomimic_ddp.commands import watch
from robomimic_ddp.errors import DataError, Stopped
from robomimic_ddp.monitoring.records import heartbeat
from robomimic_ddp.training import run as _run
from tests.faults.toy_run import STEPS, ToyJob, train
from tests.heartbeats import beat, write
from tests.plans import planned_run
from tests.processes import wait_for


def trained(directory):
    """What this rank had written in the last step of the epoch, and at its end."""
    seen = []

    def begin(_):
        _run.current().output.start_heartbeat(directory, _run.current().plan)

    def look(job):
        if job.step_number == STEPS - 1:
            _run.current().output.heartbeat.write()
            reported = heartbeat.read(directory)
            seen.append(next(one for one in reported if one["rank"] == job.rank))

    train(ToyJob({"construction": begin, "step": look}))
    seen.append(heartbeat.read(directory)[_run_rank()])
    return seen


def _run_rank():
    return int(os.environ["RANK"])


def test_two_ranks_tell_where_they_are(ranks, tmp_path):
    for rank, (within, after) in enumerate(ranks.run(trained, tmp_path, world_size=2)):
        assert (within["rank"], within["world_size"], within["device"]) == (rank, 2, "cpu")
        assert (within["epoch"], within["step"]) == (1, STEPS - 1)
        assert within["memory"] > 2**20
        assert within["begun"] == STEPS and ".py:" in within["code"]
        assert within["loss"] > 0 and within["step_seconds"] > 0 and not within["finished"]
        assert after["finished"] and after["step"] == STEPS
    assert not list(tmp_path.rglob("*.tmp"))


NOW = 1_000_000.0
WAITING = "_engine_run_backward (torch/autograd/graph.py:800)"


@pytest.mark.parametrize(
    "changes, state",
    [
        ({}, "trains"),
        ({"step": 39, "idle_seconds": 300.0}, "STUCK"),
        ({"step": 39, "idle_seconds": 40.0, "step_seconds": 10.0}, "trains"),
        ({"idle_seconds": 300.0}, "waits"),
        ({"step": 39, "idle_seconds": 300.0, "place": "saving the state"}, "saves"),
        ({"time": NOW - 60, "place": "saving the state"}, "SILENT"),
        ({"finished": True, "time": NOW - 60}, "finished"),
        ({"ended": "failed", "time": NOW - 60}, "failed"),
        ({"epoch": None, "step": 0, "idle_seconds": 60.0}, "STUCK"),
        (
            {"begun": 41, "idle_seconds": 60.0, "code": "forward (robomimic/models/base.py:1)"},
            "STUCK",
        ),
        ({"begun": 41, "idle_seconds": 60.0, "code": WAITING}, "waits"),
    ],
)
def test_the_odd_rank_stands_out(changes, state):
    waiting = {"idle_seconds": 60.0, "code": WAITING, "begun": 41} if "code" in changes else {}
    states = enumerate(({}, changes, waiting))
    lines = watch.rows([beat(rank, **{"time": NOW, **state}) for rank, state in states], NOW)
    assert [line[1] for line in lines] == [
        "trains",
        state,
        "waits" if "code" in changes else "trains",
    ]
    for line, one in zip(lines[1:], (changes, waiting)):
        code = one.get("code", "-")
        assert (f", in {code}" in line[-1]) == ("code" in one)
    assert lines[0][2:] == (
        *("2", "40", "0.250", "0.125", "3 MB", "0 s ago"),
        "epoch 2 train, step 40 (node0, pid 100, cuda:0)",
    )


def test_a_killed_process_of_this_machine_is_gone(tmp_path, capsys):
    """Where no rank is left, the run has ended, whatever its heartbeats say."""
    with subprocess.Popen(["sleep", "60"]) as process:
        killed = {"host": socket.gethostname(), "pid": process.pid, "time": NOW - 7}
        mine = {**killed, "pid": os.getpid(), "time": NOW - 60}
        process.kill()
    of_container = {**killed, "time": NOW - 3}
    ranks = [beat(rank, **state) for rank, state in enumerate((killed, mine, of_container))]
    assert [line[1] for line in watch.rows(ranks, NOW)] == ["GONE", "SILENT", "trains"]
    many = [beat(0, **{**killed, "world_size": 512, "time": NOW - 16})]
    assert watch.rows(many, NOW)[0][1] == "GONE"
    assert not watch.Screen(ranks).has_ended
    killed["time"] = NOW - 16
    write(tmp_path, *(beat(rank, **killed) for rank in range(2)))
    (tmp_path / "ddp.json").write_text('{"resume": "torchrun"}')
    (tmp_path / "ddp_state.pth").touch()
    assert cli.main(["watch", str(tmp_path), "--once"]) == 1
    text = capsys.readouterr().out
    assert text.count("GONE") == 2 and "training ends in" not in text
    assert text.endswith("the run has ended; resume it with:\n  torchrun\n")


def test_the_command(tmp_path, capsys):
    now = time.time()
    write(tmp_path, beat(0), beat(1, time=now - 99))
    assert cli.main(["watch", str(tmp_path), "--once"]) == 1
    *_, header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["rank", "state", "epoch"]
    assert "trains" in first and "SILENT" in second and "99 s ago" in second
    write(tmp_path, beat(0, finished=True), beat(1, finished=True))
    assert cli.main(["watch", str(tmp_path)]) == 0  # not a terminal: plain lines until all ended
    assert capsys.readouterr().out.count("finished") == 2


def test_nothing_to_watch(tmp_path, capsys):
    with pytest.raises(DataError, match="has no heartbeats"):
        heartbeat.read(tmp_path)
    write(tmp_path / "name" / "20261124", beat())
    assert cli.main(["watch", str(tmp_path), "--once"]) == 1
    assert f"such as {tmp_path / 'name' / '20261124'}" in capsys.readouterr().err
    for command in ("watch", "plot", "evaluate"):
        assert cli.main([command, str(tmp_path / "none")]) == 2
        assert "none is not a folder" in capsys.readouterr().err


def test_ranks_that_a_resumed_run_has_no_longer_are_not_shown(tmp_path, capsys):
    now = time.time()
    present = [beat(rank, world_size=2) for rank in (0, 1)]
    write(tmp_path, *present, beat(2, time=now - 900, finished="RuntimeError"))
    assert cli.main(["watch", str(tmp_path), "--once"]) == 0
    assert "failed" not in capsys.readouterr().out


@pytest.mark.bad_input
@pytest.mark.parametrize("damage", ["", '{"rank": 1, "wor', '{"rank": 1}', "[1]"])
def test_ranks_whose_files_are_whole_are_shown_beside_damaged_ones(damage, tmp_path, capsys):
    write(tmp_path, beat())
    (tmp_path / heartbeat.FOLDER / "rank1.json").write_text(damage)
    assert cli.main(["watch", str(tmp_path), "--once"]) == 1
    *_, first, second = capsys.readouterr().out.splitlines()
    assert "trains" in first and second.startswith("rank1.json: this heartbeat is damaged")
    (tmp_path / heartbeat.FOLDER / "rank0.json").unlink()
    assert cli.main(["watch", str(tmp_path), "--once"]) == 1
    assert "damaged files only in heartbeats/ (rank1.json)" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / heartbeat.FOLDER).touch()
    beat = heartbeat.Heartbeat(tmp_path, 0, 1, "cpu", lambda: 0).start()
    beat.in_epoch(1).done()
    beat.step({"Loss": 0.5}, None)
    beat.stop()


@pytest.mark.parametrize(
    "error, state", [(None, "finished"), (Stopped(), "ended"), (ValueError(), "failed")]
)
def test_the_last_word_says_how_it_ended_and_not_where_it_was_written(error, state, tmp_path):
    heartbeat.Heartbeat(tmp_path, 0, 1, "cpu", lambda: 0).start().stop(error)
    (last,) = heartbeat.read(tmp_path)
    assert last["code"] is None
    ((_, found, *_, at),) = watch.rows([last], time.time() + 60)
    assert found == state and "heartbeat" not in at and "threading" not in at


def test_a_rank_that_writes_a_file_saves(tmp_path, monkeypatch):
    """One process too, which has no places of collectives."""
    beat, found, real = heartbeat.Heartbeat(tmp_path, 0, 1, "cpu", lambda: 0), [], torch.save

    def look(*arguments):
        beat.write()
        ((_, state, *_, at),) = watch.rows(heartbeat.read(tmp_path), time.time() + 1)
        found.append((state, at.partition(" (")[0]))
        real(*arguments)

    beat._last_step -= 600
    monkeypatch.setattr(torch, "save", look)
    api.save({}, tmp_path / "last.pth")
    state_file.write(tmp_path, {"epoch": 1}, best=False)
    assert found[0][1].startswith("saving a checkpoint, in ")
    assert found[1][1].startswith("saving the state, in ")
    assert [state for state, _ in found] == ["saves"] * 2
    beat.write()
    assert heartbeat.read(tmp_path)[0]["place"] is None


def test_the_odd_rank_is_on_the_screen_of_an_ordinary_terminal(capsys):
    from rich.console import Console

    stood = {"idle_seconds": 60.0, "code": WAITING, "begun": 41}
    words = [beat(rank, **stood) for rank in range(16)]
    words[14] = beat(14, **{**stood, "code": "read (h5py/_hl/files.py:1)"})
    Console(width=80).print(watch.Screen(words))
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines) and len(lines) <= 24
    assert lines[0].startswith("rank 14/") and "STUCK" in lines[0]
    assert "h5py/_hl/files.py" in " ".join(lines[:3])
    first = next(line for line in lines if line.startswith("14/"))
    assert "STUCK" in first and "0.125" in first and first.rstrip().endswith("…")
    assert lines.index(first) < min(lines.index(one) for one in lines if one.startswith("0/"))
    assert sum("waits" in line for line in lines) == 15


def test_the_place_of_a_rank_is_complete_at_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(watch, "width", lambda: 80)
    write(tmp_path, beat(0), beat(1))
    assert cli.main(["watch", str(tmp_path), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert sum("epoch 2 train, step 40 (node0, pid 10" in line for line in lines) == 2


def test_the_memory_told_is_that_of_the_ranks_own_gpu(tmp_path, monkeypatch):
    """The beat is written in a thread, whose current device is the first one."""

    def current():
        return int(threading.current_thread() is threading.main_thread())

    def reserved(gpu=None):
        return [111, 222][current() if gpu is None else gpu]

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", current)
    monkeypatch.setattr(torch.cuda, "memory_reserved", reserved)
    present = planned_run(ranks=2, rank=1, gpus=2)
    present.output.start_heartbeat(tmp_path, present.plan)
    wait_for(lambda: list(tmp_path.glob("heartbeats/*.json")))
    reported = heartbeat.read(tmp_path)[0]
    present.output.heartbeat.stop(True)
    assert reported["memory"] == 222


def test_a_linked_folder_of_heartbeats_is_replaced(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "rank0.json").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / heartbeat.FOLDER).symlink_to(other)
    heartbeat.Heartbeat(tmp_path / "run", 0, 1, "cpu", lambda: 0).write()
    assert (other / "rank0.json").read_text() == "precious"
    assert heartbeat.read(tmp_path / "run")[0]["rank"] == 0
