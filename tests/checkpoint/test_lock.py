"""One job at a time trains in a run directory, and a dead one's is taken over."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from robomimic_ddp import checkpoint
from robomimic_ddp.checkpoint import lock
from robomimic_ddp.errors import WriteError
from robomimic_ddp.monitoring import heartbeat
from robomimic_ddp.training import run_directory as seam
from robomimic_ddp.training import run_inputs

FORK = multiprocessing.get_context("fork")


def train_for_ever(directory, begun):
    held = checkpoint.take(directory)
    heartbeat.Heartbeat(directory, 0, 1, "cpu", lambda: 0).start()
    begun.set()
    time.sleep(60)
    held.release()


@pytest.fixture
def other(tmp_path):
    """A job that trains in `tmp_path`."""
    begun = FORK.Event()
    process = FORK.Process(target=train_for_ever, args=(tmp_path, begun))
    process.start()
    assert begun.wait(20)
    yield process
    process.kill()
    process.join()


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(heartbeat, "_SECONDS", 0.2)


def test_a_second_job_is_refused_and_the_dead_ones_place_is_free(tmp_path, other):
    with pytest.raises(checkpoint.DirectoryInUse) as caught:
        checkpoint.take(tmp_path)
    for text in (str(tmp_path), f"process {other.pid} on ", "last heartbeat is 0 s old", "without"):
        assert text in str(caught.value)
    other.kill()
    other.join()
    started = time.monotonic()
    checkpoint.take(tmp_path).release()
    assert time.monotonic() - started < 1.0


def train_with_a_worker(directory, reported):
    held = checkpoint.take(directory)
    worker = FORK.Process(target=time.sleep, args=(60,))
    worker.start()
    reported.put(worker.pid)
    time.sleep(60)
    held.release()


def test_a_data_worker_that_hangs_does_not_keep_the_place_of_its_dead_rank(tmp_path):
    reported = FORK.SimpleQueue()
    process = FORK.Process(target=train_with_a_worker, args=(tmp_path, reported))
    process.start()
    worker = reported.get()
    try:
        process.kill()
        process.join()
        os.kill(worker, 0)
        started = time.monotonic()
        checkpoint.take(tmp_path).release()
        assert time.monotonic() - started < 1.0
    finally:
        os.kill(worker, 9)


def test_a_silent_job_that_lives_keeps_its_place(tmp_path, other, monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE_SECONDS", 1.0)
    os.kill(other.pid, 19)  # SIGSTOP
    time.sleep(0.5)
    with pytest.raises(checkpoint.DirectoryInUse, match=f"process {other.pid}"):
        checkpoint.take(tmp_path)


def test_what_another_node_wrote_counts_where_locks_do_not_reach(tmp_path, monkeypatch):
    beat = heartbeat.Heartbeat(tmp_path, 0, 1, "cpu", lambda: 0)
    beat._state["host"] = "another-node"
    beat.write()
    beat.start()
    with pytest.raises(checkpoint.DirectoryInUse, match="on another-node"):
        checkpoint.take(tmp_path)
    beat._stop.set()
    beat._thread.join()
    started = time.monotonic()
    checkpoint.take(tmp_path).release()
    assert 0.5 < time.monotonic() - started < 10
    reported = json.loads(beat.path.read_text())
    beat.path.write_text(json.dumps({**reported, "finished": True}))
    started = time.monotonic()
    checkpoint.take(tmp_path).release()
    assert time.monotonic() - started < 0.5


def test_a_file_system_without_locks_is_said_once(tmp_path, monkeypatch, capsys):
    class Refusing:
        is_locked = False

        def __init__(self, path):
            pass

        def acquire(self, timeout):
            raise NotImplementedError("no flock here")

    monkeypatch.setattr(lock.filelock, "FileLock", Refusing)
    checkpoint.take(tmp_path)
    assert capsys.readouterr().err.count("no lock can be taken") == 1


def test_of_two_new_runs_in_one_second_the_loser_takes_the_next_name(tmp_path):
    """As the host does: the name is the time, and `makedirs` refuses what is there."""
    taken = []

    def get_exp_dir():
        path = tmp_path / str(int(time.time()))
        if not taken:
            path.mkdir()  # the other run, a moment before
            taken.append(path)
        (path / "logs").mkdir(parents=True, exist_ok=False) if path not in taken else path.mkdir()
        return str(path / "logs"), None, str(path)

    run = SimpleNamespace(undo=SimpleNamespace(callback=lambda release: taken.append(release)))
    paths, directory = seam._new_directory(run, get_exp_dir)
    assert directory == run_inputs.common_directory(paths) and directory not in taken[:1]
    taken[-1]()


def test_a_name_that_is_never_free_is_one_error(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(WriteError, match="5 names were there already. Start again"):
        seam._new_directory(None, lambda: open(os.curdir, "x"))


def test_a_clock_that_stands_still_gives_the_next_name_too(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(time, "time", stopped := lambda: 1_000.25)
    for taken in ("1000", "1001"):
        (tmp_path / taken).mkdir()

    def get_exp_dir():
        path = tmp_path / str(int(time.time()))
        path.mkdir()
        return (str(path),)

    with ExitStack() as undo:
        _, directory = seam._new_directory(SimpleNamespace(undo=undo), get_exp_dir)
    assert directory.name == "1002" and time.time is stopped


def test_paths_come_from_the_host_where_ddp_json_does_not_say_them(tmp_path):
    """DROID's four, one of them off."""

    class Train(SimpleNamespace):
        pass

    class Config:
        train = Train(output_dir="/as/configured")

        def values_unlocked(self):
            import contextlib

            return contextlib.nullcontext()

    def get_exp_dir(config, auto_remove_exp_dir=False):
        base = os.path.join(config.train.output_dir, "name", "2026")
        for name in ("logs", "videos"):
            os.makedirs(os.path.join(base, name))
        return os.path.join(base, "logs"), None, os.path.join(base, "videos"), base

    config = Config()
    run = SimpleNamespace(config=config)
    paths = seam._paths_as_made(run, tmp_path, get_exp_dir, (config,), {})
    assert paths == (str(tmp_path / "logs"), None, str(tmp_path / "videos"), str(tmp_path))
    assert config.train.output_dir == "/as/configured"
