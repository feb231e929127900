"""Files and folders that people name: what is read once, refused, or cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from robomimic_ddp import cli
from robomimic_ddp.config import paths
from robomimic_ddp.config.json_config import checked_config, read_json
from robomimic_ddp.errors import ConfigError

pytestmark = pytest.mark.bad_input
CONFIG = {"algo_name": "diffusion_policy", "train": {"seed": 1}}


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(path := tmp_path / "pipe")
    return path


def test_a_config_from_a_pipe_is_read_once_and_kept_for_the_host(pipe):
    writer = threading.Thread(target=lambda: pipe.write_text(json.dumps(CONFIG)))
    writer.start()
    arguments = Namespace(config=str(pipe))
    with checked_config(arguments):
        kept = Path(arguments.config)
        for _ in range(2):
            assert json.loads(kept.read_text()) == CONFIG
    writer.join()
    assert arguments.config == str(pipe) and not kept.exists()


def test_a_program_may_take_its_time_to_write_into_a_pipe(monkeypatch):
    monkeypatch.setattr(paths, "_PIPE_SECONDS", 0.2)
    slow = 'sleep 1; echo \'{"algo_name": "bc"}\''
    with subprocess.Popen(["sh", "-c", slow], stdout=subprocess.PIPE) as program:
        assert read_json(f"/dev/fd/{program.stdout.fileno()}", "") == {"algo_name": "bc"}


def test_a_pipe_that_nothing_writes_into_is_an_error(pipe, monkeypatch):
    monkeypatch.setattr(paths, "_PIPE_SECONDS", 0.2)
    with pytest.raises(ConfigError, match="load_from=.*pipe could not be.*nothing has written"):
        read_json(pipe, "load_from=")


def test_a_pipe_is_refused_where_several_ranks_would_share_it(pipe, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "2" if name == "WORLD_SIZE" else "0")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ConfigError, match="is a pipe, which one process can read.* 2 ranks"):
        read_json(pipe, "--config ")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "/dev", "a\0b", "~no-such-user/x"])
def test_what_is_no_file_is_an_error(path):
    with pytest.raises(ConfigError, match="--config "):
        read_json(path, "--config ")


NOT_WRITABLE = {
    "a\0b": "NUL",
    "~no-such-user/runs": "no user 'no-such-user'",
    "x" * 300: "longer than the 255 bytes",
    "/".join(["x" * 200] * 20): "bytes long",
    "/proc/runs": "nothing may be written in /proc",
    "/sys/runs": "nothing may be written in /sys",
    "/dev/null/runs": "/dev/null is a file",
    "\udcff": "not UTF-8",
}


@pytest.mark.parametrize(("path", "words"), NOT_WRITABLE.items(), ids=range(len(NOT_WRITABLE)))
def test_a_place_that_cannot_be_written_has_its_reason(path, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in paths.why_not_writable(path)
    (tmp_path / "in").mkdir()
    assert cli.main(["inspect-data", str(tmp_path / "in"), "-o", path]) == 2
    assert words in (error := capsys.readouterr().err) and "cannot be written to" in error
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_a_place_that_can_be_written_is_left_as_it_is(tmp_path):
    assert paths.why_not_writable(tmp_path / "runs" / "of today") is None
    assert not os.listdir(tmp_path)


def test_where_rows_go_is_looked_at_before_they_are_measured(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--config", "c", "--ranks", "1", "--json", str(tmp_path / "file/rows")])
    assert ended.value.code == 2 and f"{tmp_path / 'file'} is a file" in capsys.readouterr().err
