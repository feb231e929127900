"""Columns of decoded frames: filled together, checked, resumed after a kill, bounded."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import time

import numpy as np
import pytest

from robomimic_ddp.data import frame_cache
from robomimic_ddp.data.frame_cache import Column
from robomimic_ddp.errors import DataError

LENGTHS = np.array([3, 5, 2, 7, 4, 6])
ROWS = np.arange(len(LENGTHS))
ITEM = (2, 3)
PATIENCE = 20.0
fork = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(frame_cache, "UNIT_STEPS", 6)  # units: episodes 0, 1; 2, 3; 4; 5


def column(folder, name="one"):
    return Column(folder / f"{name}{frame_cache.SUFFIX}", LENGTHS, ITEM, np.uint8)


def values_of(row):
    made = np.random.default_rng(int(row)).integers(0, 255, (LENGTHS[row], *ITEM), np.uint8)
    return made, np.arange(LENGTHS[row]) == row


def writer(written, before=lambda row: None):
    def write(rows, columns):
        for row in rows:
            before(row)
            written.append(int(row))
            yield [one.write(row, *values_of(row)) for one in columns]

    return write


def require_whole(one, rows=ROWS):
    assert not len(one.missing(rows))
    for row in rows:
        steps = slice(one.starts[row], one.starts[row] + LENGTHS[row])
        values, damaged = values_of(row)
        assert (one.values[steps] == values).all() and (one.damaged[steps] == damaged).all()


def test_only_what_is_needed_and_missing_is_made(tmp_path):
    first, made = column(tmp_path), []
    frame_cache.fill([first], ROWS[[0, 3]], writer(made), (0, 1))
    assert made == [0, 3]
    require_whole(first, ROWS[[0, 3]])
    again, other = column(tmp_path), column(tmp_path, "other")
    frame_cache.fill([again, other], ROWS, writer(made), (1, 2))
    assert sorted(made[2:]) == ROWS.tolist()  # `other` has none of them
    require_whole(again), require_whole(other)
    frame_cache.fill([again, other], ROWS, writer(made), (0, 1))
    assert len(made) == 8


def test_two_processes_share_the_work(tmp_path):
    """Both begin at the same unit, as two jobs do."""

    begin = fork.Barrier(2)

    def job(pipe):
        begin.wait(PATIENCE)
        made = []
        frame_cache.fill([column(tmp_path)], ROWS, writer(made, lambda _: time.sleep(0.1)), (0, 1))
        require_whole(column(tmp_path))
        pipe.send(made)

    pipes = [fork.Pipe() for _ in range(2)]
    jobs = [fork.Process(target=job, args=(pipe[1],)) for pipe in pipes]
    for one in jobs:
        one.start()
    made = [pipe[0].recv() if pipe[0].poll(PATIENCE) else None for pipe in pipes]
    for one in jobs:
        one.join(PATIENCE)
    assert all(made) and sorted(made[0] + made[1]) == ROWS.tolist(), made


def suspended(tmp_path):
    """A process that has filled one unit, and is suspended within the second."""

    def stops(row):
        if row == 3:
            os.kill(os.getpid(), signal.SIGSTOP)

    def job():
        frame_cache.fill([column(tmp_path)], ROWS, writer([], stops), (0, 1))

    stopped = fork.Process(target=job)
    stopped.start()
    while len(column(tmp_path).missing(ROWS[:2])):
        time.sleep(0.01)
    return stopped


def test_a_suspended_process_holds_nobody_up(tmp_path, monkeypatch):
    stopped, made, one = suspended(tmp_path), [], column(tmp_path)
    monkeypatch.setattr(frame_cache, "LONGEST_WAIT", 0.5)
    try:
        frame_cache.fill([one], ROWS, writer(made), (0, 1))
    finally:
        os.kill(stopped.pid, signal.SIGKILL)
        stopped.join(PATIENCE)
    assert made == [4, 5, 2, 3]
    require_whole(one)


def test_what_a_killed_process_has_made_is_kept(tmp_path):
    """The other process waits for its unit, and takes it over."""
    stopped = suspended(tmp_path)
    made, one, begun = [], column(tmp_path), time.monotonic()
    killer = fork.Process(target=lambda: (time.sleep(0.5), os.kill(stopped.pid, signal.SIGKILL)))
    killer.start()
    frame_cache.fill([one], ROWS, writer(made), (0, 1))
    stopped.join(PATIENCE), killer.join(PATIENCE)
    assert made == [4, 5, 2, 3] and 0.4 < time.monotonic() - begun < PATIENCE
    require_whole(one)


@pytest.mark.parametrize("where", ["value", "flag", "checksum"])
def test_a_flipped_byte_is_found_and_made_again(tmp_path, where, capsys):
    one, made = column(tmp_path), []
    frame_cache.fill([one], ROWS, writer(made), (0, 1))
    steps = int(LENGTHS.sum())
    at = {"value": 10 * 6 + 1, "flag": 6 * steps + 10, "checksum": one.path.stat().st_size - 8 * 3}
    data = bytearray(one.path.read_bytes())
    data[at[where]] ^= 1
    with open(one.path, "r+b") as file:
        file.write(data)
    again = column(tmp_path)
    frame_cache.forget_damaged([([again], ROWS)], (0, 1))
    assert "1 episode(s) of the frame cache" in capsys.readouterr().err
    assert again.missing(ROWS).tolist() == [3]
    frame_cache.fill([again], ROWS, writer(made), (0, 1))
    assert made[len(ROWS) :] == [3]
    require_whole(again)
    frame_cache.forget_damaged([([again], ROWS)], (0, 1))
    assert not capsys.readouterr().err


def test_a_sample_of_a_large_column_is_compared_and_all_of_it_if_one_differs(
    tmp_path, monkeypatch, capsys
):
    one = column(tmp_path)
    frame_cache.fill([one], ROWS, writer([]), (0, 1))
    looked, real = [], Column._checksum
    monkeypatch.setattr(Column, "_checksum", lambda *a: looked.append(a[1]) or real(*a))
    monkeypatch.setattr(frame_cache, "CHECKED_BYTES", 60)
    frame_cache.forget_damaged([([one], ROWS)], (0, 1))
    assert 1 <= len(looked) < len(ROWS)
    with open(one.path, "r+b") as file:
        file.write(bytes(6 * int(LENGTHS.sum())))
    frame_cache.forget_damaged([([one], ROWS)], (0, 1))
    assert len(one.missing(ROWS)) == len(ROWS) and "6 episode(s)" in capsys.readouterr().err


def test_a_cut_file_is_filled_again(tmp_path):
    one, made = column(tmp_path), []
    frame_cache.fill([one], ROWS, writer(made), (0, 1))
    os.truncate(one.path, 20)
    again = column(tmp_path)
    frame_cache.fill([again], ROWS, writer(made), (0, 1))
    require_whole(again)


def test_the_bound_is_for_all_caches_of_the_folder(tmp_path):
    one = column(tmp_path)
    needs, size = [([one], ROWS)], int(LENGTHS.sum()) * 7
    assert frame_cache.size_of(needs) == size
    gib = 2**30
    frame_cache.require_room(tmp_path, needs, size / gib, False)
    with pytest.raises(DataError, match=r"more than ddp\.cache_gb=.*Raise ddp\.cache_gb"):
        frame_cache.require_room(tmp_path, needs, (size - 1) / gib, False)
    (tmp_path / f"other{frame_cache.SUFFIX}").write_bytes(bytes(100_000))
    with pytest.raises(DataError, match=r"1 file\(s\) of other runs there take .*remove those"):
        frame_cache.require_room(tmp_path, needs, (size + 90_000) / gib, False)
    frame_cache.require_room(tmp_path, needs, 1, True)


def test_without_a_bound_memory_is_filled_by_half_at_most(tmp_path, monkeypatch):
    needs = [([column(tmp_path)], ROWS)]
    monkeypatch.setattr(frame_cache.machine, "machine_memory", lambda: 300)
    with pytest.raises(DataError, match="more than 50% of this machine's memory"):
        frame_cache.require_room(tmp_path, needs, 0, True)
    frame_cache.require_room(tmp_path, needs, 0, False)
    frame_cache.require_room(tmp_path, needs, 1, True)


def test_what_is_not_free_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    one = column(tmp_path)
    frame_cache.fill([one], ROWS[:2], writer([]), (0, 1))
    usage = frame_cache.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(frame_cache.shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(DataError, match="GiB of them new, and 0.00 GiB are free"):
        frame_cache.require_room(tmp_path, [([one], ROWS)], 0, False)
    frame_cache.require_room(tmp_path, [([one], ROWS[:3])], 0, False)


def test_a_full_disk_is_one_error_and_what_is_there_is_kept(tmp_path, monkeypatch):
    one, real = column(tmp_path), os.pwrite

    def pwrite(file, data, at):
        if at >= 6 * one.starts[3] and at < 6 * LENGTHS.sum():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(DataError, match="cannot be written: .*No space left.* Free some"):
            frame_cache.fill([one], ROWS, writer([]), (0, 1))
    assert one.missing(ROWS).tolist() == [2, 3, 4, 5]
    made = []
    frame_cache.fill([one], ROWS, writer(made), (0, 1))
    assert made == [2, 3, 4, 5]


@pytest.fixture
def small_disk(tmp_path):
    """A file system in memory of 1 MiB, as a container's /dev/shm."""
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], stderr=subprocess.DEVNULL
        ).returncode
    ):
        pytest.skip("file systems cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_full_shared_memory_is_one_error(small_disk):
    """Not SIGBUS, which ends a process that reads what is not there through its map."""
    lengths = np.full(4000, 10)
    (small_disk / "other").write_bytes(bytes(2**19))

    def values(rows, columns):
        for row in rows:
            yield [
                one.write(row, np.ones((10, 100), np.uint8), np.zeros(10, bool)) for one in columns
            ]

    def job():
        one = Column(small_disk / f"one{frame_cache.SUFFIX}", lengths, (100,), np.uint8)
        with pytest.raises(DataError, match="of them new, and 0.00 GiB are free"):
            frame_cache.require_room(small_disk, [([one], np.arange(4000))], 0, False)
        with pytest.raises(DataError, match="cannot be written: .*No space left"):
            frame_cache.fill([one], np.arange(4000), values, (0, 1))
        again = Column(one.path, lengths, (100,), np.uint8)
        assert 0 < len(again.missing(np.arange(4000))) == len(one.missing(np.arange(4000)))

    process = fork.Process(target=job)
    process.start(), process.join(PATIENCE)
    assert process.exitcode == 0


def test_a_folder_that_may_only_be_read_serves_what_it_has(tmp_path, monkeypatch):
    frame_cache.fill([column(tmp_path)], ROWS, writer([]), (0, 1))
    real = os.open

    def read_only(path, flags, *mode, **more):
        if flags & os.O_RDWR and str(tmp_path) in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", read_only)
    one = column(tmp_path)
    frame_cache.forget_damaged([([one], ROWS)], (0, 1))
    frame_cache.fill([one], ROWS, writer([]), (0, 1))
    require_whole(one)
    with pytest.raises(DataError, match="Read-only file system.*another folder"):
        column(tmp_path, "other")


def test_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(frame_cache, "SHARED_MEMORY", str(tmp_path))
    root, in_memory = frame_cache.cache_root("RAM")
    assert root.is_dir() and root.parent == tmp_path and in_memory
    root, in_memory = frame_cache.cache_root(str(tmp_path / "a" / "b"))
    assert root.is_dir() and root == tmp_path / "a" / "b" and not in_memory
    (tmp_path / "file").write_text("")
    for bad in ("file", "a\0b"):
        with pytest.raises(DataError, match="cannot be written"):
            frame_cache.cache_root(str(tmp_path / bad))
    monkeypatch.chdir(tmp_path)
    for word in ("", "true", "rma", "disk"):
        with pytest.raises(DataError, match=f"ddp.cache={word}: expected none, ram, or a folder"):
            frame_cache.cache_root(word)
    assert not (tmp_path / "true").exists()


def test_a_machine_without_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(frame_cache, "SHARED_MEMORY", str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="which this machine does not have. Give a folder"):
        frame_cache.cache_root("ram")
