"""Which folder a run gets: a free name for a new one, its own paths for a resumed one."""

from __future__ import annotations

import contextlib
import os
import time
from types import SimpleNamespace

import pytest

from robomimic_ddp.checkpoint import FoundRun
from robomimic_ddp.errors import DataError, WriteError
from robomimic_ddp.training import run_directory as seam
from tests.ranks.running import running


class Config:
    """What is read of a host's config."""

    def __init__(self):
        self.train = SimpleNamespace(output_dir="/as/configured")

    values_unlocked = contextlib.nullcontext


def paths_of(tmp_path, get_exp_dir, found=None, train=None):
    """The paths that the host, or its `train`, gets from its patched `get_exp_dir`."""
    config = Config()
    with running(tmp_path, found) as run, run.undo:
        run.config = config
        try:
            return (train or seam.run_directory(get_exp_dir))(config)
        finally:
            run.output.end(None)
            assert config.train.output_dir == "/as/configured"


@pytest.fixture
def no_sleep(monkeypatch):
    monkeypatch.setattr(seam.time, "sleep", lambda seconds: None)


def test_a_name_that_is_taken_gives_the_next_one(tmp_path, monkeypatch):
    """As the host does: the name is the time, and `mkdir` refuses what is there."""
    slept = [1_000.25]
    monkeypatch.setattr(time, "time", lambda: sum(slept))
    monkeypatch.setattr(time, "sleep", slept.append)
    for taken in ("1000", "1001"):
        (tmp_path / taken).mkdir()

    def get_exp_dir(config):
        path = tmp_path / str(int(time.time()))
        path.mkdir()
        return (str(path),)

    assert paths_of(tmp_path, get_exp_dir) == (str(tmp_path / "1002"),)


def test_a_name_that_is_never_free_is_one_error(tmp_path, no_sleep):
    with pytest.raises(WriteError, match="5 of these names were taken. Start again"):
        paths_of(tmp_path, lambda config: open(os.curdir, "x"))


def test_paths_come_from_the_host_where_ddp_json_does_not_say_them(tmp_path):
    """DROID's four, one of them off."""

    def get_exp_dir(config):
        base = os.path.join(config.train.output_dir, "name", "2026")
        for name in ("logs", "videos"):
            os.makedirs(os.path.join(base, name))
        return os.path.join(base, "logs"), None, os.path.join(base, "videos"), base

    paths = paths_of(tmp_path, get_exp_dir, FoundRun(tmp_path, "begun"))
    assert paths == (str(tmp_path / "logs"), None, str(tmp_path / "videos"), str(tmp_path))
    assert (tmp_path / "videos").is_dir()


def test_a_path_that_ddp_json_has_lost_comes_from_the_host(tmp_path):
    def get_exp_dir(config):
        return os.path.join(config.train.output_dir, "logs"), config.train.output_dir

    paths = paths_of(tmp_path, get_exp_dir, FoundRun(tmp_path, "begun", (None, str(tmp_path))))
    assert paths == (str(tmp_path / "logs"), str(tmp_path))


def test_a_run_that_fails_where_main_begins_it_is_over(monkeypatch):
    config = SimpleNamespace(train=SimpleNamespace(cuda=False))
    ended = []

    @contextlib.contextmanager
    def begun(*_):
        try:
            resume = SimpleNamespace(by_host=False)
            yield SimpleNamespace(output=SimpleNamespace(end=None), resume=resume)
        except DataError:
            ended.append(True)
            raise

    def refuse(*_):
        raise DataError("no such file")

    monkeypatch.setattr(seam.session, "begun", begun)
    monkeypatch.setattr(seam.run_inputs, "check_inputs", refuse)
    with pytest.raises(DataError):
        seam.begin_run(lambda config: None)(config)
    assert ended


@pytest.mark.parametrize("make", ["touch", "link"])
def test_something_else_where_a_resumed_run_needs_a_folder(tmp_path, make):
    logs = tmp_path / "logs"
    logs.touch() if make == "touch" else logs.symlink_to(tmp_path / "unmounted")
    with pytest.raises(WriteError, match="logs cannot be used as a folder of the resumed run"):
        paths_of(tmp_path, lambda config: None, FoundRun(tmp_path, "state", (str(logs),)))
