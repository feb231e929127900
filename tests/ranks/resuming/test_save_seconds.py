"""When a state is saved: at the first epoch's end, then at most once in `ddp.save_seconds`, and
always at a stop, at a new best and after the last epoch. The main rank's clock decides for all.
"""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest

from robomimic_ddp.checkpoint import BEST, PREVIOUS, STATE, Writer
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import Stopped
from robomimic_ddp.training.state import resume, state_saver
from tests.ranks.running import running
from tests.ranks.toy import make_algo


def saved_epochs(directory, times, losses, save_seconds, stops_at=None):
    """The epochs whose states this rank had a part in. `times`: the main rank's clock at the end of
    each epoch; another rank's stands still.
    """
    epochs = []
    clock = SimpleNamespace(monotonic=lambda: times[epoch - 1] if group.is_main() else 0.0)
    with running(directory, save_seconds=save_seconds) as run:
        saver = state_saver.StateSaver(run, make_algo())
        run.stopper.agreed_at_last = lambda: epoch == stops_at
        resume.restored("best_valid_loss", None)
        saver.restore()
        with mock.patch.object(state_saver, "time", clock):
            try:
                for epoch, best_valid_loss in enumerate(losses, start=1):  # noqa: B007
                    saver.epoch_end(epoch)
                    epochs += [epoch] * saver.is_saved
                saver.finish()
            except Stopped:
                return [*epochs, "stopped"]
        return [*epochs, saver.finished]


@pytest.mark.parametrize(
    "times, losses, seconds, expected",
    [
        pytest.param((0, 10, 59, 60, 70, 80), "aaaaaa", 60, [1, 4, 6], id="time"),
        pytest.param((0, 10, 20, 30), "abba", 60, [1, 2, 4, 4], id="better"),
        pytest.param((0, 1, 2), "aaa", 0, [1, 2, 3, 3], id="every epoch"),
        pytest.param((0, 1, 2), "aaa", 60, [1, 3], id="last"),
    ],
)
def test_who_saves_when(ranks, tmp_path, times, losses, seconds, expected):
    assert ranks.run(saved_epochs, tmp_path, times, losses, seconds) == [expected] * 2
    assert read_file(tmp_path / STATE)["epoch"] == expected[-1]


def test_a_stop_saves_before_its_time(ranks, tmp_path):
    found = ranks.run(saved_epochs, tmp_path, (0, 1, 2), "aaa", 60, 2)
    assert found == [[1, "stopped"]] * 2
    assert read_file(tmp_path / STATE)["epoch"] == 2
    assert read_file(tmp_path / PREVIOUS)["epoch"] == 1
    assert (tmp_path / "requeue").exists()


def best_then_others(directory):
    """The thread has not begun when all epochs are over."""
    writer = Writer()
    with mock.patch.object(writer, "begin"), running(directory, writer=lambda: writer) as run:
        saver = state_saver.StateSaver(run, make_algo())
        resume.restored("best_valid_loss", None)
        saver.restore()
        for epoch, best_valid_loss in ((1, 0.5), (2, 0.4), (3, 0.4)):  # noqa: B007
            saver.epoch_end(epoch)
    assert writer.flush(60)


def test_a_later_state_does_not_replace_the_best_one_that_waits(tmp_path):
    best_then_others(tmp_path)
    assert [read_file(tmp_path / name)["epoch"] for name in (BEST, STATE)] == [2, 3]


def failing_then_mended(directory):
    with running(directory, save_seconds=60) as run:
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        saver.epoch_end(1)
        epochs = [saver.is_saved]
        saver.next_save = 0.0
        with mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")):
            saver.epoch_end(2)
        for epoch in (3, 4):
            saver.epoch_end(epoch)
            epochs.append(saver.is_saved)
        return epochs


def test_a_save_that_failed_is_tried_at_the_next_epochs_end(ranks, tmp_path):
    assert ranks.run(failing_then_mended, tmp_path) == [[True, True, False]] * 2
    assert read_file(tmp_path / STATE)["epoch"] == 3


def a_fault_of_ours(directory):
    with running(directory) as run:
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        error = RuntimeError("CUDA error")
        with mock.patch.object(state_saver.checkpoint, "write", side_effect=error):
            saver.epoch_end(1)
        try:
            saver.epoch_end(2)
        except RuntimeError as error:
            return str(error)


def test_another_error_of_the_thread_ends_training_at_the_next_save(ranks, tmp_path):
    assert ranks.run(a_fault_of_ours, tmp_path) == ["CUDA error"] * 2
