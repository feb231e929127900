"""A disk that is full, read-only, over its quota or gone while two ranks save.

What was saved before stays. A state is tried again at the next epoch's end; in the host's own save
the main rank fails, which ends the job.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess

import pytest
import torch

from robomimic_ddp import api
from robomimic_ddp.checkpoint import BEST, PREVIOUS, STATE, HostFiles, Writer, torch_save
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import CheckpointError
from robomimic_ddp.monitoring.records import history
from robomimic_ddp.training import epoch as seam
from robomimic_ddp.training.state import resume, state_saver
from tests.ranks.bad_disks import (
    DISK_FAULTS,
    FOLDER_FAULTS,
    WORDS,
    not_writable,
    over_quota,
)
from tests.ranks.hosts import Algo
from tests.ranks.pool import RankError
from tests.ranks.running import running
from tests.ranks.toy import make_algo


@pytest.fixture
def small_disk(tmp_path):
    """A separate file system of 256 KB; `FOLDER_FAULTS` need none."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"this user may not mount a small disk: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def place(fault, request, tmp_path):
    """Where the fault can be had."""
    if fault in DISK_FAULTS:
        return request.getfixturevalue("small_disk")
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def better_each_time(directory):
    """Two epochs, each the best so far."""
    errors = io.StringIO()
    with running(directory) as run, contextlib.redirect_stderr(errors):
        saver = state_saver.StateSaver(run, make_algo())
        for epoch, best_valid_loss in ((1, 0.5), (2, 0.4)):  # noqa: B007 - the saver reads it
            resume.restored("best_valid_loss", None)
            saver.epoch_end(epoch)
        reported = run.output.record.content["saved"]["epoch"] if group.is_main() else 2
        return errors.getvalue(), saver.best == {"best_valid_loss": best_valid_loss}, reported


def test_a_copy_that_cannot_be_replaced_does_not_undo_the_save(ranks, tmp_path):
    """As a file that is immutable."""
    for name in (PREVIOUS, BEST):
        (tmp_path / name / "within").mkdir(parents=True)
    reported, of_other = ranks.run(better_each_time, tmp_path)
    assert reported[1:] == of_other[1:] == (True, 2) and of_other[0] == ""
    assert reported[0].count("warning") == 1, "once"
    assert f"{STATE} was saved, but {BEST} was not updated" in reported[0]
    assert read_file(tmp_path / STATE)["epoch"] == 2
    assert sorted(os.listdir(tmp_path)) == sorted([STATE, PREVIOUS, BEST, "ddp.json"])


def host_saves(directory, fault):
    # Larger than any fault lets through: torch 2.0 writes a number into less than a kilobyte.
    checkpoint_of_epoch = {"epoch": 2, "weights": torch.ones(10_000)}
    save_model = api.main_rank_only(lambda: api.save(checkpoint_of_epoch, directory / "last.pth"))
    with fault(directory) if group.is_main() else contextlib.nullcontext():
        save_model()


@pytest.mark.parametrize("fault", [*DISK_FAULTS, *FOLDER_FAULTS])
def test_the_hosts_save(ranks, place, fault):
    torch_save.save({"epoch": 1}, place / "last.pth")
    with pytest.raises(RankError) as caught:
        ranks.run(host_saves, place, fault)
    reported = caught.value.by_rank[0]
    assert "SaveError" in reported and WORDS[fault] in reported and "last.pth" in reported
    assert torch.load(place / "last.pth") == {"epoch": 1}


def test_a_disk_with_room_for_one_file_has_the_state(small_disk):
    """And not the host's last.pth, whose error ends training at its next save."""
    errors = io.StringIO()
    with running(small_disk, writer=Writer) as run, contextlib.redirect_stderr(errors):
        algo, files = make_algo("single"), HostFiles(run.output.writer)
        algo.nets["large"] = torch.nn.Linear(150, 150)  # 90 KB, and as much in a state
        saver = state_saver.StateSaver(run, algo)
        saver.restore()
        host_file = {"model": algo.nets.state_dict(), "more": torch.ones(20_000)}
        files.save(host_file, small_disk / "last.pth")
        files.copyfile(small_disk / "last.pth", small_disk / "last_bak.pth")
        saver.epoch_end(1)
        run.output.writer.flush()
        with pytest.raises(CheckpointError, match="No space left on device"):
            files.save(host_file, small_disk / "last.pth")
        run.output.writer.close()
    assert errors.getvalue().count("warning: ") == 1
    assert read_file(small_disk / STATE)["epoch"] == 1
    assert not list(small_disk.glob("last*")) and not list(small_disk.glob(".*.tmp"))


def four_epochs(directory, fault):
    """Epochs as the seams make them: a log, a state, the outcome at last; the second and third
    meet the fault.
    """
    errors = io.StringIO()
    with running(directory) as run, contextlib.redirect_stderr(errors):
        saver = state_saver.StateSaver(run, make_algo())

        def run_epoch(model, data_loader, epoch, num_steps=None):
            return {"Loss": float(epoch), "text": "x" * 5000}

        recorded = seam.epoch_log(run_epoch)
        saver.restore()
        for epoch in (1, 2, 3, 4):
            faulty = epoch in (2, 3) and group.is_main()
            with fault(directory) if faulty else contextlib.nullcontext():
                recorded(Algo(), [], epoch, num_steps=1)
                saver.epoch_end(epoch)
                if epoch == 3:
                    run.note_outcome(3, {})
            if group.is_main() and epoch < 4:
                assert read_file(directory / STATE)["epoch"] == 1, "it is tried at an epoch's end"
                assert not list(directory.glob("*.tmp"))
            group.barrier()
        run.note_outcome(4, {"equal": True})
    return errors.getvalue()


@pytest.mark.parametrize("fault", [*DISK_FAULTS, *FOLDER_FAULTS])
def test_epochs_on_a_faulty_disk_or_in_a_faulty_folder(ranks, place, fault):
    warned, of_other = ranks.run(four_epochs, place, fault)
    assert of_other == "" and warned.count("The next try is at the next epoch's end") == 2
    assert "could not be saved" in warned and WORDS[fault] in warned
    assert read_file(place / STATE)["epoch"] == 4 and read_file(place / PREVIOUS)["epoch"] == 1
    assert [record["epoch"] for record in history.read(place)] in ([1, 4], [1, 2, 3, 4])
    record = json.loads((place / "ddp.json").read_text())
    assert record["outcome"]["steps"] == 4 and record["saved"]["epoch"] == 4
    if fault in (over_quota, not_writable):  # a file that is open already may still grow
        return
    for text in ("lacks an epoch's log", "ddp.json could not be written"):
        assert warned.count(text) == 1
