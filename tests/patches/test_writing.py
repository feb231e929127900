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
        Change(folder / "a.py", b"A"),
        Change(folder / "new.py", b"N", 0o600),
        Change(folder / "b.py", b"B"),
        Change(folder / "c.py", None),
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


@pytest.mark.bad_input
def test_a_read_only_folder_is_respected(folder):
    inner = folder / "inner"
    inner.mkdir()
    os.chmod(inner, 0o555)
    before = snapshot(folder)
    try:
        with pytest.raises(PatchError, match="inner"):
            write_all([*some_changes(folder), Change(inner / "x.py", b"x")])
        assert snapshot(folder) == before
    finally:
        os.chmod(inner, 0o755)


def test_a_link_stays_a_link(folder):
    target = folder / "elsewhere"
    target.mkdir()
    (target / "real.py").write_bytes(b"old")
    (folder / "link.py").symlink_to(target / "real.py")
    write_all([Change(folder / "link.py", b"new")])
    assert (folder / "link.py").is_symlink()
    assert (target / "real.py").read_bytes() == b"new"


def test_hard_links_elsewhere_keep_their_bytes(folder):
    os.link(folder / "a.py", folder / "cache.py")
    write_all([Change(folder / "a.py", b"A")])
    assert (folder / "cache.py").read_bytes() == b"a"
