"""What scripts and CIs of others lean on: commands, flags, words and exit codes.

A change here is a change for users: it belongs into CHANGELOG.md.
"""

from __future__ import annotations

import re

import pytest

from robomimic_ddp import cli, errors
from tests.patches.support import snapshot

CHOICE = ["--with", "--without"]
FLAGS = {
    "status": ["[PATH]", *CHOICE],
    "diff": ["[PATH]", *CHOICE],
    "apply": ["[PATH]", *CHOICE, "--check"],
    "revert": ["[PATH]", "--force"],
    "inspect-data": ["[path]", "--output", "--episodes", "--config", "--json"],
    "run": ["PROGRAM ...", *CHOICE, "--host"],
}
OUTCOMES = ("can be patched", "patched", "not present", "not recognised")


@pytest.mark.parametrize("command", FLAGS)
def test_flags(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    usage, _, described = capsys.readouterr().out.partition("\n\n")
    arguments, *options = FLAGS[command]
    assert usage.endswith(f" {arguments}")
    shown = re.findall(r"^  (?:-\w(?: \w+)?, )?(--?[\w-]+)", described, re.MULTILINE)
    assert sorted(shown) == sorted(["--help", *options])


def test_commands():
    assert set(FLAGS) | {"plot"} <= set(cli.COMMANDS)


def test_exit_codes():
    assert (errors.EXIT_DONE, errors.EXIT_REFUSED, errors.EXIT_USAGE) == (0, 1, 2)


def status(command, host) -> tuple[str, set[str]]:
    """The state that the last sentence names, and the outcomes in the table."""
    _, out, _ = command("status", host)
    state = re.findall(r"^([a-z ]+): ", out, re.MULTILINE)[-1]
    cells = re.findall(rf"^\S.*  ({'|'.join(OUTCOMES)})\b", out, re.MULTILINE)
    return state, set(cells)


def test_the_five_classes_of_status(host, command):
    assert status(command, host) == ("not patched", {"can be patched", "not present"})
    command("apply", host)
    assert status(command, host)[1] == {"patched", "not present"}
    path = host / "utils/train_utils.py"
    path.write_text(
        path.read_text().replace("DDPUtils.save(model, path)", "torch.save(model, f=path)")
    )
    state, outcomes = status(command, host)
    assert (state, outcomes) == ("blocked", {"patched", "not present", "not recognised"})
    (host / "scripts/train_mine.py").write_text(
        "from accelerate import Accelerator\nAccelerator()\n"
    )
    _, out, _ = command("status", host)
    assert "scripts/train_mine.py:2" in out and "\nalready distributed: " in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status"], 0),
        (["diff"], 0),
        (["apply", "--check"], 1),
        (["apply", "--with", "data_parallel", "--check"], 1),
        (["apply", "--without", "cuda_device", "--check"], 1),
        (["revert"], 0),
        (["revert", "--check"], 2),
        (["status", "--force"], 2),
    ],
)
def test_codes_of_commands_that_write_nothing(host, command, arguments, code):
    before = snapshot(host)
    assert command(arguments[0], host, *arguments[1:])[0] == code
    assert snapshot(host) == before
