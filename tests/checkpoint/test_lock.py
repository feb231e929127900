"""One job at a time trains in a run directory, and a dead one's is taken over."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import time
from unittest import mock

import pytest

from robomimic_ddp import checkpoint, files
from robomimic_ddp.checkpoint import lock
from robomimic_ddp.monitoring.records import heartbeat

FORK = multiprocessing.get_context("fork")


def train_for_ever(directory, begun):
    held = checkpoint.take(directory)
    heartbeat.Heartbeat(directory, 0, 1, "cpu", lambda: 0).start()
    begun.set()
    time.sleep(60)
    held.close()


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
    checkpoint.take(tmp_path).close()
    assert time.monotonic() - started < 1.0


def train_with_a_worker(directory, reported):
    held = checkpoint.take(directory)
    worker = FORK.Process(target=time.sleep, args=(60,))
    worker.start()
    reported.put(worker.pid)
    time.sleep(60)
    held.close()


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
        checkpoint.take(tmp_path).close()
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
    checkpoint.take(tmp_path).close()
    assert 0.5 < time.monotonic() - started < 10
    reported = json.loads(beat.path.read_text())
    beat.path.write_text(json.dumps({**reported, "finished": True}))
    started = time.monotonic()
    checkpoint.take(tmp_path).close()
    assert time.monotonic() - started < 0.5


def test_locks_that_fail_while_a_job_waits_are_a_warning(tmp_path, monkeypatch, capsys):
    refused = mock.Mock(side_effect=[BlockingIOError, OSError(errno.ESTALE, "Stale file handle")])
    monkeypatch.setattr(files.fcntl, "flock", refused)
    checkpoint.take(tmp_path).close()
    assert capsys.readouterr().err.count("cannot be locked: [Errno 116] Stale file handle") == 1


def test_a_file_system_without_locks_is_said_once(tmp_path, monkeypatch, capsys):
    refused = mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr(files.fcntl, "flock", refused)
    checkpoint.take(tmp_path).close()
    assert capsys.readouterr().err.count("cannot be locked") == 1
    beat = heartbeat.Heartbeat(tmp_path, 0, 1, "cpu", lambda: 0)
    beat.write()
    beat.start()
    try:
        with pytest.raises(checkpoint.DirectoryInUse, match=f"process {os.getpid()}"):
            checkpoint.take(tmp_path)
    finally:
        beat._stop.set()
        beat._thread.join()
