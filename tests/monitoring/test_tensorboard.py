"""TensorBoard has what the DataLogger was given, however the process ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import nullcontext

import pytest

from robomimic_ddp.distributed import end_process, entry_point
from robomimic_ddp.monitoring import host_loggers
from tests.hosts import ROOT
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
    time.sleep(0.5)  # the first flush is at once
    for epoch in (1, 2):
        logger.record("loss", 0.5, epoch)
    end = time.monotonic() + 30
    while len(scalars(tmp_path)) < 2 and time.monotonic() < end:
        time.sleep(0.1)
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
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (5, "")
    assert scalars(tmp_path) == {("loss", epoch): 0.5 for epoch in range(50)}


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_plain_process_writes_before_the_interpreter_ends(error, monkeypatch):
    """tensorboardX cannot close a file without events then: no thread starts any more."""
    written = []
    monkeypatch.setattr(end_process, "_last_writes", [])

    @entry_point.entry_point
    def main():
        end_process.write_before_end(lambda: written.append(1))
        if error is not None:
            raise error

    with nullcontext() if error is None else pytest.raises((ValueError, SystemExit)):
        main()
    assert written == [1]


def test_a_disk_that_hangs_keeps_no_process_from_its_end(monkeypatch):
    monkeypatch.setattr(end_process, "_WRITE_SECONDS", 0.1)
    monkeypatch.setattr(end_process, "_last_writes", [])
    hangs = threading.Event()
    end_process.write_before_end(hangs.wait)
    end_process.finish_writes()
    assert not hangs.is_set()
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.timeout(60)
def test_tensorboard_that_cannot_write_does_not_keep_training_waiting(tmp_path, capsys):
    logger = DataLogger(tmp_path)
    worker = logger._tb_logger.file_writer.event_writer._worker

    def refuse():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    worker._record_writer.flush = refuse
    logger.record("loss", 1.0, 0)
    worker.join(20)
    for epoch in range(30):  # its queue takes 10
        logger.record("loss", 1.0, epoch)
    logger.close()
    assert capsys.readouterr().err.count("TensorBoard's log could not be written") == 1
