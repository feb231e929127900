"""All files or none, each atomically."""

from __future__ import annotations

import os

import pytest

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches import writing
from robomimic_ddp.patches.writing import Change, write_all
from tests.patches.support import snapshot


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.py").write_bytes(b"a")
    (tmp_path / "b.py").write_bytes(b"b")
    (tmp_path / "c.py").write_bytes(b"c")
    os.chmod(tmp_path / "b.py", 0o640)
    return tmp_path


def some_changes(folder):
    return [
        Change(folder / "a.py", b"a", b"A"),
        Change(folder / "new.py", None, b"N", 0o600),
        Change(folder / "b.py", b"b", b"B"),
        Change(folder / "c.py", b"c", None),
    ]


def test_writes_adds_and_removes(folder):
    write_all(some_changes(folder))
    assert {name: data for name, (data, _) in snapshot(folder).items()} == {
        "a.py": b"A",
        "b.py": b"B",
        "new.py": b"N",
    }
    assert snapshot(folder)["b.py"][1] == 0o640
    assert snapshot(folder)["new.py"][1] == 0o600


@pytest.mark.planted_fault
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_every_file_as_it_was(folder, monkeypatch, call, error):
    before, replace, count = snapshot(folder), os.replace, []

    def failing(source, target):
        count.append(target)
        if len(count) == call:
            raise error
        replace(source, target)

    monkeypatch.setattr(writing.os, "replace", failing)
    expected = PatchError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_all(some_changes(folder))
    assert snapshot(folder) == before


@pytest.mark.bad_input
def test_a_read_only_file_is_respected_before_anything_is_written(folder):
    os.chmod(folder / "b.py", 0o444)
    before = snapshot(folder)
    with pytest.raises(PatchError, match="read-only"):
        write_all(some_changes(folder))
    assert snapshot(folder) == before


@pytest.mark.planted_fault
@pytest.mark.parametrize("full_at", range(1, 4))
def test_a_full_disk_is_met_before_any_file_is_touched(folder, monkeypatch, full_at):
    before, fsync, count, renamed = snapshot(folder), os.fsync, [], []

    def full(handle):
        count.append(handle)
        if len(count) == full_at:
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(writing.os, "fsync", full)
    monkeypatch.setattr(writing.os, "replace", lambda *names: renamed.append(names))
    with pytest.raises(PatchError, match="No space left on device. Every file is as it was"):
        write_all(some_changes(folder))
    assert (snapshot(folder), renamed) == (before, [])


def refuse(monkeypatch, *calls):
    """os.replace fails for these (name of the target, its n-th time), as with immutable files."""
    replace, seen = os.replace, []

    def refusing(source, target):
        name = os.path.basename(target)
        seen.append(name)
        if (name, seen.count(name)) in calls:
            raise OSError(16, "Device or resource busy")
        replace(source, target)

    monkeypatch.setattr(writing.os, "replace", refusing)


@pytest.mark.planted_fault
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_only_renamed_files_are_put_back(folder, monkeypatch, links):
    def no_link(source, target):
        raise OSError(18, "Invalid cross-device link")

    before = snapshot(folder)
    refuse(monkeypatch, ("b.py", 1), ("b.py", 2))
    if not links:
        monkeypatch.setattr(writing.os, "link", no_link)
    with pytest.raises(PatchError, match="b.py cannot be written: .* Every file is as it was"):
        write_all(some_changes(folder))
    assert snapshot(folder) == before


def save_in_place(path):
    path.write_bytes(b"the user's")


def save_by_rename(path):
    path.with_name("swap").write_bytes(b"the user's")
    os.replace(path.with_name("swap"), path)


@pytest.mark.planted_fault
@pytest.mark.parametrize("save", [save_in_place, save_by_rename, os.unlink])
@pytest.mark.parametrize("name", ["a.py", "b.py", "c.py", "new.py"])
def test_an_edit_saved_since_a_file_was_read_is_kept(folder, name, save):
    changes = some_changes(folder)
    (folder / "new.py").touch()
    save(folder / name)
    if name != "new.py":
        (folder / "new.py").unlink()
    elif save is os.unlink:
        return
    before = snapshot(folder)
    with pytest.raises(PatchError, match=f"{name} cannot be written: another program has saved it"):
        write_all(changes)
    assert snapshot(folder) == before


@pytest.mark.planted_fault
@pytest.mark.parametrize("save", [save_in_place, save_by_rename])
@pytest.mark.parametrize("name", ["a.py", "b.py", "c.py"])
def test_an_edit_saved_while_files_are_written_is_kept(folder, monkeypatch, name, save):
    """Of a.py after it was written, of the others before; then b.py or c.py cannot be written."""
    replace = os.replace

    def saving(source, target):
        replace(source, target)
        if os.path.basename(target) == "a.py":
            monkeypatch.setattr(writing.os, "replace", replace)
            save(folder / name)
            (folder / "b.py").write_bytes(b"the user's")

    monkeypatch.setattr(writing.os, "replace", saving)
    with pytest.raises(PatchError, match="another program has saved it since it was read"):
        write_all(some_changes(folder))
    assert (folder / name).read_bytes() == (folder / "b.py").read_bytes() == b"the user's"


@pytest.mark.planted_fault
def test_what_cannot_be_put_back_is_named_and_the_rest_is_put_back(folder, monkeypatch):
    before = snapshot(folder)
    refuse(monkeypatch, ("b.py", 1), ("a.py", 2))
    record = Change(folder / "record.json", None, b"R", is_record=True)
    with pytest.raises(PatchError) as failed:
        write_all([record, *some_changes(folder)])
    after = snapshot(folder)
    assert after.pop("record.json")[0] == b"R", "it knows what a.py was"
    assert after == {**before, "a.py": (b"A", before["a.py"][1])}
    message = str(failed.value)
    assert "a.py has the new contents: Device or resource busy" in message
    assert "b.py cannot be written" in message and "All others are as they were" in message


def test_remnants_of_a_killed_write_go(folder):
    (folder / ".a.py.abcd_123.tmp").write_bytes(b"A")
    kept = (".a.py.swp", ".notes.tmp", "a.py.abcd_123.tmp")
    for name in kept:
        (folder / name).write_bytes(b"mine")
    writing.remove_remnants([folder])
    names = {"a.py", "b.py", "c.py", *kept}
    assert {path.name for path in folder.iterdir()} == names


def test_a_link_stays_a_link(folder):
    target = folder / "elsewhere"
    target.mkdir()
    (target / "real.py").write_bytes(b"old")
    (folder / "link.py").symlink_to(target / "real.py")
    write_all([Change(folder / "link.py", b"old", b"new")])
    assert (folder / "link.py").is_symlink()
    assert (target / "real.py").read_bytes() == b"new"


def test_hard_links_elsewhere_keep_their_bytes(folder):
    os.link(folder / "a.py", folder / "cache.py")
    write_all([Change(folder / "a.py", b"a", b"A")])
    assert (folder / "cache.py").read_bytes() == b"a"
