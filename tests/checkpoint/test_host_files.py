"""The host's last.pth and its backup, written while training continues."""

from __future__ import annotations

import shutil
import threading
from functools import partial

import pytest
import torch

from robomimic_ddp.checkpoint import HostFiles, Writer, torch_save
from robomimic_ddp.errors import CheckpointError


@pytest.fixture
def files():
    writer = Writer()
    yield HostFiles(writer)
    writer.close()


def test_files_have_the_bytes_of_a_save_at_once(files, tmp_path):
    weight = torch.ones(100)
    content = {"model": {"nets": {"w": weight}, "again": weight[:3]}, "best": {"walk": 0.5}}
    (tmp_path / "at_once").mkdir()
    torch_save.save(content, tmp_path / "at_once" / "last.pth")
    files.save(content, tmp_path / "last.pth")
    files.copyfile(tmp_path / "last.pth", tmp_path / "last_bak.pth")
    assert not (tmp_path / "last.pth").exists(), "the state of the epoch comes first"
    weight.zero_()
    content["best"]["walk"] = 1.0
    files.writer.flush()
    expected = (tmp_path / "at_once" / "last.pth").read_bytes()
    assert (tmp_path / "last.pth").read_bytes() == expected
    assert (tmp_path / "last_bak.pth").read_bytes() == expected
    assert not (tmp_path / "last.pth").samefile(tmp_path / "last_bak.pth"), "hosts copy over it"


def test_a_copy_that_is_no_backup_is_made_at_once(files, tmp_path):
    """No later epoch may be better: a newer last.pth must not replace what is copied."""
    files.save({"epoch": 1}, tmp_path / "last.pth")
    best = files.copyfile(tmp_path / "last.pth", tmp_path / "best.pth")
    assert torch.load(best) == {"epoch": 1}
    with pytest.raises(shutil.SameFileError):
        files.copyfile(best, best)


def test_a_backup_that_waits_is_replaced_with_its_file(files, tmp_path):
    gate, last = threading.Event(), tmp_path / "last.pth"
    files.writer.put("earlier", lambda: gate.wait(60), pytest.fail)
    for epoch in (1, 2):
        files.save({"epoch": epoch}, last)
        files.copyfile(last, tmp_path / "last_bak.pth")
        files.writer.begin()
    gate.set()
    files.writer.flush()
    names = ("last", "last_bak")
    assert [torch.load(tmp_path / f"{name}.pth")["epoch"] for name in names] == [2, 2]


def test_a_backup_does_not_wait_for_a_file_that_is_withdrawn(files, tmp_path):
    """A slow disk, before the first last.pth exists."""
    gate, last = threading.Event(), tmp_path / "last.pth"
    files.writer.put("earlier", lambda: gate.wait(60), pytest.fail)
    files.save({"epoch": 1}, last)
    files.copyfile(last, tmp_path / "last_bak.pth")
    files.writer.begin()
    files.writer.copy(str(last), {"epoch": 2}).free()
    gate.set()
    files.writer.flush()
    files.require_written()
    assert list(tmp_path.iterdir()) == []


def test_a_backup_of_what_is_written_is_made_at_once(files, tmp_path):
    """A host may write config.json, say, again."""
    (tmp_path / "config.json").write_text("before")
    files.save({"epoch": 1}, tmp_path / "last.pth")
    files.copyfile(tmp_path / "config.json", tmp_path / "config_bak.json")
    assert (tmp_path / "config_bak.json").read_text() == "before"


def test_a_state_precedes_the_files_of_its_epoch(files, tmp_path):
    """Also where an earlier one is still written, and where the host saves three files."""
    written, gate = [], threading.Event()

    def put(name, first=False):
        snapshot = files.writer.copy(name, {"weight": torch.ones(3)})
        files.writer.put(name, lambda: written.append(name), pytest.fail, snapshot, first=first)

    files.writer.put("earlier", lambda: gate.wait(60), pytest.fail)
    files.writer.begin()
    put("models/1.pth")
    put("last.pth")
    backup = partial(written.append, "last_bak.pth")
    files.writer.put("last_bak.pth", backup, pytest.fail, source="last.pth")
    gate.set()
    put("state", first=True)
    files.writer.flush()
    assert written == ["state", "models/1.pth", "last.pth", "last_bak.pth"]


def test_a_relative_path_is_that_of_the_moment(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.save({"epoch": 1}, "last.pth")
    monkeypatch.chdir("/")
    files.writer.flush()
    assert torch.load(tmp_path / "last.pth") == {"epoch": 1}


def test_an_error_is_a_warning_and_raised_at_the_next_save(files, tmp_path, capsys):
    place = tmp_path / "run"
    files.save({"epoch": 1}, place / "last.pth")
    files.copyfile(place / "last.pth", place / "last_bak.pth")
    files.writer.flush()
    warned = capsys.readouterr().err
    assert warned.count("warning: checkpoint") == 1 and "last.pth could not be saved" in warned
    place.mkdir()
    with pytest.raises(CheckpointError, match=r"last\.pth could not be saved: .*No such file"):
        files.save({"epoch": 2}, place / "last.pth")
    files.save({"epoch": 3}, place / "last.pth")
    files.writer.flush()
    files.require_written()
    assert torch.load(place / "last.pth") == {"epoch": 3}
