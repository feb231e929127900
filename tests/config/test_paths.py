"""Files and folders that people name: what is refused, or cannot be written."""

from __future__ import annotations

import os

import pytest

from robomimic_ddp import cli
from robomimic_ddp.config import paths
from robomimic_ddp.config.host.json_config import read_json
from robomimic_ddp.errors import ConfigError

pytestmark = pytest.mark.bad_input


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(path := tmp_path / "pipe")
    return path


def test_a_config_is_a_file(pipe):
    """Each rank reads it, and a pipe can be read once."""
    with pytest.raises(ConfigError, match="--config .*pipe could not be.*is a pipe: a file is"):
        read_json(pipe, "--config ")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "/dev", "a\0b", "~no-such-user/x"])
def test_what_is_no_file_is_an_error(path):
    with pytest.raises(ConfigError, match="--config "):
        read_json(path, "--config ")


NOT_WRITABLE = {
    "a\0b": "not text in UTF-8",
    "/sys/runs": "nothing may be written in /sys",
    "/dev/null/runs": "/dev/null is a file",
    "\udcff": "not text in UTF-8",
}


@pytest.mark.parametrize(("path", "words"), NOT_WRITABLE.items(), ids=range(len(NOT_WRITABLE)))
def test_a_place_that_cannot_be_written_has_its_reason(path, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in paths.why_not_writable(path)
    (tmp_path / "in").mkdir()
    assert cli.main(["inspect-data", str(tmp_path / "in"), "-o", path]) == 2
    assert words in (error := capsys.readouterr().err) and "cannot be written" in error
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_a_place_that_can_be_written_is_left_as_it_is(tmp_path):
    assert paths.why_not_writable(tmp_path / "runs" / "of today") is None
    assert not os.listdir(tmp_path)
