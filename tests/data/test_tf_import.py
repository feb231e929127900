"""TensorFlow's start-up lines stay out of what commands print."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from robomimic_ddp import cli
from robomimic_ddp.config import env
from robomimic_ddp.config.host import early_checks, host_edits
from robomimic_ddp.data.rlds import tf_import
from tests import hosts

CHATTER = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1795440165.674011   17459 port.cc:153] oneDNN custom operations are on.\n"
)
IMPORTS_NETS = """
import sys
from robomimic_ddp import train_rlds
try:
    train_rlds.main(["load_from=/nowhere.json"])
except SystemExit:
    import robomimic.algo
print("diffusers" in sys.modules, "tensorflow" in sys.modules)
"""
PATCHED_ENTRY = "import robomimic_ddp.api as DDPUtils\nDDPUtils.entry_point(main)()"


def test_only_start_up_lines_are_left_out(capfd):
    with pytest.raises(ImportError), tf_import.without_startup_lines():
        os.write(2, CHATTER + b"E0000 an error\n")
        print("somebody's warning", file=sys.stderr)
        raise ImportError
    os.write(2, b"after\n")
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == ["E0000 an error", "after", "somebody's warning"]


def test_a_rank_leaves_tensorflow_to_code_that_imports_it():
    """transformers, below the host's nets, would load it."""
    pytest.importorskip("robomimic"), pytest.importorskip("tensorflow")
    variables = hosts.environment(None)
    del variables["USE_TF"]
    shown = subprocess.run(
        [sys.executable, "-c", IMPORTS_NETS], env=variables, capture_output=True, text=True
    )
    assert shown.stdout.split()[-2:] == ["True", "False"], shown.stderr


def test_a_training_script_does_so_before_it_imports_the_host(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    monkeypatch.setenv("USE_TF", "")  # so that it is restored
    monkeypatch.delenv("USE_TF")
    for entry, expected in (("import robomimic", None), (PATCHED_ENTRY, "0")):
        monkeypatch.setattr(host_edits, "main_text", lambda entry=entry: entry)
        monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
        early_checks.check_script()
        assert os.environ.get("USE_TF") == expected


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
