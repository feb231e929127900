"""`robomimic-ddp evaluate --follow`: checkpoints as they come, and what plots and trackers show."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from robomimic_ddp import cli
from robomimic_ddp.commands import plot
from robomimic_ddp.commands.evaluate import checkpoints
from robomimic_ddp.commands.evaluate import record as record_of
from robomimic_ddp.commands.evaluate.follow import Follower
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, CheckpointError
from robomimic_ddp.monitoring.records import evaluation
from tests import heartbeats
from tests.evaluate.conftest import Job
from tests.evaluate.support import CONFIG, write
from tests.hosts import require_clean
from tests.processes import wait_for
from tests.runs import scalars

SOON_SECONDS = 240.0


def names(follower: Follower) -> list[str]:
    return [path.name for path in follower.paths()]


def at(number: int, path: Path) -> Path:
    os.utime(path, (number, number))
    return path


def test_an_ended_run_gives_its_newest_checkpoint_first_and_none_twice(tmp_path, capsys):
    (tmp_path / "ddp.json").write_text('{"outcome": {}}')
    for epoch in (100, 150):
        at(epoch, write(tmp_path / f"models/e{epoch}.pth", epoch))
    at(200, write(tmp_path / "last.pth", 151))
    cut = write(tmp_path / "models/cut.pth")
    cut.write_bytes(b"PK\3\4")
    at(99, cut)
    gone = at(98, write(tmp_path / "models/gone.pth"))
    incomplete = at(97, write(tmp_path / "models/incomplete.pth"))
    follower = Follower(tmp_path, None, poll=0.0)
    found = []
    for path in follower.paths():
        found.append(path.name)
        if path == cut:
            follower.failed(path, CheckpointError("it is damaged"))
        if path == gone:
            gone.unlink()
            follower.failed(path, CheckpointError("it has vanished"))
        if path == incomplete and found.count(path.name) == 1:
            follower.failed(path, CheckpointError("it is being written"))
            at(90, write(path, 97))
    shown = ["e150.pth", "e100.pth", "cut.pth", "gone.pth", "incomplete.pth", "incomplete.pth"]
    assert found == [*shown, "last.pth"]
    err = capsys.readouterr().err
    assert err == "warning: a checkpoint is left out: it is damaged\n"
    without = {name: text for name, (_, text) in follower.unreadable.items()}
    assert without == {"models/cut.pth": "it is damaged", "models/gone.pth": "it has vanished"}
    size = checkpoints.signature(tmp_path, tmp_path / "models/e100.pth")
    line = {"kind": "result", "epoch": 100, "weights": "a", "env": "lift", "episodes": 3}
    more = {"lost": [], "file": size, "checkpoint": "a", "interval": None, "log": {}}
    evaluation.append(tmp_path, {**line, **more})
    assert "e100.pth" not in names(Follower(tmp_path, 3, poll=0.0))
    assert "e100.pth" in names(Follower(tmp_path, 4, poll=0.0))


def test_a_checkpoint_that_replaces_another_during_its_copy_is_read(tmp_path):
    """It may be the run's last one."""
    (tmp_path / "ddp.json").write_text('{"outcome": {}}')
    last = at(100, write(tmp_path / "last.pth", 99))
    follower, epochs = Follower(tmp_path, None, poll=0.0), []
    for path in follower.paths():
        epochs.append(checkpoints.read(("last.pth", 1, 1), path).epoch)
        if epochs == [99]:
            at(200, write(last, 100))
            follower.failed(path, CheckpointError("it is being written"))
    assert epochs == [99, 100] and not follower.unreadable


def test_last_pth_counts_after_epochs_with_rollouts_and_the_last_one(tmp_path):
    """A run without a ddp.json is an unedited host's."""
    config = json.loads(json.dumps(CONFIG))
    config["train"]["num_epochs"] = 120
    follower = Follower(tmp_path, None, poll=0.0)
    found = []
    for epoch in (50, 99, 100, 101, 120):  # warmstart 60, rate 50
        at(epoch, write(tmp_path / "last.pth", epoch, config=json.dumps(config)))
        path = follower._next(follower._has_ended())
        found += [] if path is None else [epoch]
        assert follower._next(follower._has_ended()) is None
    assert found == [100, 120] and follower._has_ended()


@pytest.mark.bad_input
def test_a_checkpoint_without_a_result_ends_the_command_with_1(tmp_path, capsys, monkeypatch):
    """As rsync ends with 23 where it has left out a file."""
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    (tmp_path / "ddp.json").write_text('{"outcome": {}}')
    write(tmp_path / "last.pth").write_bytes(b"PK\3\4")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.pth").symlink_to("nowhere.pth")
    for words in (["--follow"], ["--checkpoints", "all"]):
        code = cli.main(["evaluate", str(tmp_path), "--workers", "1", *words])
        out, err = capsys.readouterr()
        *warnings, line = err.splitlines()
        assert code == EXIT_REFUSED and "Success" not in out
        assert line.startswith("robomimic-ddp: no result for 2 checkpoint(s): ")
        assert "last.pth is not a torch checkpoint" in line
        assert re.search(r"a\.pth is a broken link|nowhere\.pth cannot be copied", line), line
        assert all(text.startswith("warning: a checkpoint is left out") for text in warnings)


@pytest.mark.e2e
@pytest.mark.timeout(500)
def test_checkpoints_are_evaluated_while_training_runs(job: Job, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.move(job.run / "models", kept)
    shutil.move(job.run / "last.pth", kept)
    (job.run / "models").mkdir()
    record = json.loads((job.run / "ddp.json").read_text())
    outcome = record.pop("outcome")
    (job.run / "ddp.json").write_text(json.dumps(record))

    def are_evaluated(*epochs: int) -> bool:
        return {result["epoch"] for result in evaluation.results(job.run)} == {*epochs}

    with ThreadPoolExecutor() as pool, open(job.run / "ddp.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody trains
        options = {"timeout": SOON_SECONDS}
        followed = pool.submit(job.evaluate, "--follow", "--workers", 1, **options)
        (first,) = kept.glob("model_epoch_1*.pth")
        whole = first.read_bytes()
        (job.run / "models" / first.name).write_bytes(whole[:-500])  # as it is written
        time.sleep(1.0)
        (job.run / "models" / first.name).write_bytes(whole)
        wait_for(lambda: followed.done() or are_evaluated(1), SOON_SECONDS)
        assert not followed.done()
        shutil.move(kept / "last.pth", job.run)
        wait_for(lambda: followed.done() or are_evaluated(1, 2), SOON_SECONDS)
        assert not followed.done()
        (job.run / "ddp.json").write_text(json.dumps({**record, "outcome": outcome}))
    result = followed.result()
    require_clean(result)
    shown = result.stdout
    assert all(record_of.sentence(result) in shown for result in evaluation.results(job.run))
    assert (job.run / "best_success.pth").is_file()
    logged = scalars(job.run)
    for result in evaluation.results(job.run):
        for name, value in result["log"].items():
            tag = (f"Rollout/{name}/low_dim", result["epoch"])
            assert logged[tag] == pytest.approx(value, rel=1e-6)
    plot.plot([str(job.run)], str(tmp_path / "curves.png"))
    drawn = plot._records(job.run)
    assert [line["epoch"] for line in drawn if line["phase"] == "rollout"] == [1, 2]


@pytest.mark.parametrize(("seconds", "ends"), [(0.0, False), (1000.0, True)])
def test_training_that_has_died_has_ended_after_a_while(seconds, ends, tmp_path):
    """Nobody trains in the folder, and torchrun's restart takes some time."""
    (tmp_path / "ddp.json").write_text('{"plan": {}}')
    heartbeats.write(tmp_path, heartbeats.beat(time=time.time() - seconds))
    assert Follower(tmp_path, None)._has_ended() is ends
    with open(tmp_path / "ddp.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not Follower(tmp_path, None)._has_ended()


def test_following_a_run_that_has_died_plays_what_is_left_and_says_so(tmp_path, capsys):
    (tmp_path / "ddp.json").write_text('{"plan": {}}')
    assert cli.main(["evaluate", str(tmp_path), "--follow", "--workers", "1"]) == EXIT_DONE
    text = " ".join(capsys.readouterr().out.split())
    assert "training ended before its last epoch" in text and "(none at all)" in text


def test_results_of_earlier_processes_are_in_the_table_the_newest_first(tmp_path, capsys):
    (tmp_path / "ddp.json").write_text('{"outcome": {}}')
    signature = checkpoints.signature(tmp_path, write(tmp_path / "last.pth", 7))
    result = {"kind": "result", "weights": "x", "env": "lift", "episodes": 50, "lost": []}
    result |= {"file": signature, "checkpoint": "x", "interval": None, "log": {}}
    for epoch in (5, 7, 6):
        evaluation.append(tmp_path, {**result, "epoch": epoch})
    words = ["evaluate", str(tmp_path), "--follow", "--workers", "1", "--episodes", "4"]
    assert cli.main(words) == EXIT_DONE
    out = capsys.readouterr().out
    assert "(3 evaluated before; leave out --follow to evaluate one again)" in " ".join(out.split())
    assert re.findall(r"^(\d) +lift", out, re.MULTILINE) == ["7", "6", "5"]
