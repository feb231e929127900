"""What `robomimic-ddp --print-completion` prints completes commands, options and choices."""

from __future__ import annotations

import re
import subprocess

import pytest

from robomimic_ddp import cli

pytest.importorskip("shtab")
TRIES = """
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_robomimic_ddp
        echo "${COMPREPLY[*]}"; }
try robomimic-ddp appl
try robomimic-ddp launch --lr-sc
try robomimic-ddp sweep new --sampler ran
try robomimic-ddp plot --out
try robomimic-ddp ckpt conv
try robomimic-ddp ckpt show run
try robomimic-ddp sweep run --ranks 2 run
try robomimic-ddp bench --ranks 1,2 --rou
"""


def printed(capsys, shell: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", shell])
    assert not ended.value.code
    return capsys.readouterr().out


def test_bash_completes_commands_options_choices_and_paths(capsys, tmp_path):
    script = printed(capsys, "bash") + TRIES
    (tmp_path / "runs").mkdir()
    words = ["apply", "--lr-scaling", "random", "--output", "convert", *["runs"] * 2, "--rounds"]
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == words, done


def test_zsh_names_every_command(capsys):
    script = printed(capsys, "zsh")
    assert script.startswith("#compdef robomimic-ddp")
    for name in cli.COMMANDS:
        assert re.search(rf"""^    ("{name}:|{name}:')""", script, re.MULTILINE)


@pytest.mark.bad_input
def test_without_shtab_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "shtab", None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", "bash"])
    assert ended.value.code == 1 and "pip install shtab" in capsys.readouterr().err
