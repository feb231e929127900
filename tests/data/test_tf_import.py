"""TensorFlow's start-up lines stay out of what commands print."""

from __future__ import annotations

import os
import sys

import pytest

from robomimic_ddp import cli
from robomimic_ddp.config import env
from robomimic_ddp.data.rlds import tf_import

CHATTER = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1795440165.674011   17459 port.cc:153] oneDNN custom operations are on.\n"
)


def test_only_start_up_lines_are_left_out(capfd):
    with pytest.raises(ImportError), tf_import.without_startup_lines():
        os.write(2, CHATTER + b"E0000 an error\n")
        print("somebody's warning", file=sys.stderr)
        raise ImportError
    os.write(2, b"after\n")
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == ["E0000 an error", "after", "somebody's warning"]


def test_commands_want_no_more_than_errors(monkeypatch, tmp_path):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    assert not env.tensorflow_is_quiet()
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")  # the user's own
    cli.main(["watch", str(tmp_path)])
    assert not env.tensorflow_is_quiet()
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    cli.main(["watch", str(tmp_path)])
    assert env.tensorflow_is_quiet()
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
