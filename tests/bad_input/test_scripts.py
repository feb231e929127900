"""The scripts and the demo: checkouts of odd names, wrong arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.demo.__main__ import main as demo
from tests.bad_input.table import NAMES, contents
from tests.hosts import ROOT

pytestmark = pytest.mark.bad_input


WORDS = {
    "demo.sh": ["an=argument here", "x=$(touch executed)", "y=*"],
    "test.sh": ["--", "an argument", "$(touch executed)", "*"],
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("script", ["test.sh", "demo.sh"])
def test_scripts_run_in_a_checkout_of_an_odd_name(script: str, name: str, tmp_path: Path) -> None:
    """With an environment whose python writes down what it was called for."""
    checkout = tmp_path / name
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    for file in ("setup.py", "constraints.txt"):
        shutil.copy2(ROOT / file, checkout / file)
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\nif [ "$1" = -m ]; then shift; printf "%s|" "$@" >> "$CALLS"; exit 0; fi\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    calls = tmp_path / "calls"
    done = subprocess.run(
        [checkout / "scripts" / script, *WORDS[script]],
        cwd=tmp_path,
        env={**os.environ, "CALLS": str(calls)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    words = calls.read_text().split("|")
    extras = {"demo.sh": "robomimic,rlds", "test.sh": "robomimic,rlds,test"}[script]
    assert words[0] == "pip" and f"{checkout}[{extras}]" in words
    assert words[-4:] == [*WORDS[script][-3:], ""]
    assert not (tmp_path / "executed").exists() and not (checkout / "executed").exists()


DEMO = {
    "root is a file": (["--root", "{folder}/file"], ("--root", "file", "is a file")),
    "root below a file": (["--root", "{folder}/file/x"], ("--root", "file is a file")),
    "no such config": (["--config", "{folder}/none.json"], ("--config", "none.json", "no such")),
    "no ranks": (["--ranks", "0"], ("--ranks", "0", "at least 1")),
    "no demonstrations": (["--demonstrations", "0"], ("--demonstrations", "0", "at least 2")),
    "no evaluations": (["--evaluations", "0"], ("--evaluations", "0", "at least 1")),
    "a setting without a value": (["train.num_epochs"], ("train.num_epochs", "key=value")),
}


@pytest.mark.parametrize(("arguments", "words"), DEMO.values(), ids=DEMO)
def test_wrong_arguments_of_the_demo(arguments, words, tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("a file")
    before = contents(tmp_path)
    arguments = [text.format(folder=tmp_path) for text in arguments]
    if "--root" not in arguments:
        arguments = ["--root", str(tmp_path / "demo"), *arguments]
    try:
        code = demo(arguments)
    except SystemExit as end:  # argparse
        code = end.code
    error = capsys.readouterr().err
    assert code not in (0, None)
    assert error.count("error: ") == 1 and "Traceback" not in error
    assert not [word for word in words if word not in error], error
    assert contents(tmp_path) == before
