"""TensorBoard has what the DataLogger was given, however the process ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from contextlib import nullcontext

import pytest

from robomimic_ddp.config import env
from robomimic_ddp.distributed import end_process
from robomimic_ddp.monitoring import host_loggers
from tests.hosts import ROOT
from tests.processes import wait_for
from tests.runs import scalars

tensorboardX = pytest.importorskip("tensorboardX")


class TensorBoardLogger:
    """As the host's, which leaves the flushing to tensorboardX."""

    def __init__(self, log_dir, log_tb=True):
        from tensorboardX import SummaryWriter  # as the host does, when it is made

        self._tb_logger = SummaryWriter(str(log_dir / "logs" / "tb")) if log_tb else None

    def record(self, key, value, epoch):
        self._tb_logger.add_scalar(key, value, epoch)


def test_tensorboard_has_a_value_long_before_the_two_minutes_of_its_writer(tmp_path):
    plain = tensorboardX.SummaryWriter
    logger = host_loggers.data_logger(TensorBoardLogger)(tmp_path)
    for epoch in (1, 2):
        logger.record("loss", 0.5, epoch)
    wait_for(lambda: len(scalars(tmp_path)) == 2, 30)
    assert scalars(tmp_path) == {("loss", 1): 0.5, ("loss", 2): 0.5}
    assert tensorboardX.SummaryWriter is plain
    logger._tb_logger.close()


def test_a_process_that_ends_at_once_has_written_what_tensorboard_was_given(tmp_path):
    code = """
        import pathlib
        from robomimic_ddp.distributed import end_process
        from tests.monitoring.test_tensorboard import TensorBoardLogger, host_loggers

        def fail():
            raise OSError("a disk is full")

        logger = host_loggers.data_logger(TensorBoardLogger)(pathlib.Path("."))
        end_process.write_before_end(fail)
        for epoch in range(50):
            logger.record("loss", 0.5, epoch)
        end_process.exit_with_workers(5)
    """
    variables = env.child_environment([str(ROOT), *sys.path])
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (5, "")
    assert scalars(tmp_path) == {("loss", epoch): 0.5 for epoch in range(50)}


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_training_writes_before_it_ends(error, monkeypatch):
    """Later a signal may end the process, and tensorboardX cannot close a file without events as
    the interpreter ends: no thread starts any more.
    """
    written = []
    monkeypatch.setattr(end_process, "_last_writes", [])
    with nullcontext() if error is None else pytest.raises(error), end_process.writes_finished():
        end_process.write_before_end(lambda: written.append(1))
        if error is not None:
            raise error
    assert written == [1]


def test_a_second_caller_waits_for_the_same_writes(monkeypatch):
    """The handler of a signal, while training ends."""
    monkeypatch.setattr(end_process, "_last_writes", [])
    begun, may_end, written = threading.Event(), threading.Event(), []

    def write():
        begun.set()
        may_end.wait(60)
        written.append(1)

    monkeypatch.setattr(end_process, "_WRITE_SECONDS", 60.0)
    end_process.write_before_end(write)
    first = threading.Thread(target=end_process.finish_writes)
    first.start()
    assert begun.wait(60)
    threading.Timer(0.2, may_end.set).start()
    end_process.finish_writes()
    assert written == [1]
    first.join()


def test_a_disk_that_hangs_keeps_no_process_from_its_end(monkeypatch):
    monkeypatch.setattr(end_process, "_WRITE_SECONDS", 0.1)
    monkeypatch.setattr(end_process, "_last_writes", [])
    monkeypatch.setattr(end_process, "_writers", [])
    hangs = threading.Event()
    end_process.write_before_end(hangs.wait)
    for _ in range(2):  # and a second caller ends, too
        end_process.finish_writes()
        assert not hangs.is_set() and not end_process._last_writes
    hangs.set()


@host_loggers.data_logger
class DataLogger:
    """As the host's."""

    def __init__(self, log_dir, log_tb=True):
        self._tb_logger = tensorboardX.SummaryWriter(str(log_dir), flush_secs=0)

    def record(self, key, value, epoch):
        if self._tb_logger is not None:
            self._tb_logger.add_scalar(key, value, epoch)

    def close(self):
        if self._tb_logger is not None:
            self._tb_logger.close()


def test_tensorboard_that_cannot_write_does_not_keep_training_waiting(tmp_path):
    """Neither while its thread ends nor later, and the end of the process does not wait for a pipe
    that has room for 64 kB.
    """
    code = """
        import threading
        from tests.monitoring.test_tensorboard import DataLogger

        def refuse(event):
            may_end.wait(2.0)
            raise OSError("a disk is full")

        logger, may_end = DataLogger("."), threading.Event()
        worker = logger._tb_logger.file_writer.event_writer._worker
        worker._record_writer.write_event = refuse
        for epoch in range(900):
            logger.record("loss", 0.5, epoch)
        may_end.set()
        worker.join()
        for epoch in range(30):  # its queue takes 10
            logger.record("loss", 0.5, epoch)
        logger.close()
    """
    variables = env.child_environment([str(ROOT), *sys.path])
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, timeout=90)
    assert ended.returncode == 0
    assert ended.stderr.count(b"TensorBoard's log could not be written") == 1
