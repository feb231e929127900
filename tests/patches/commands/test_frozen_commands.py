"""What scripts and CIs of others lean on: commands, flags, JSON keys, words and exit codes.

A change here is a change for users: it belongs into CHANGELOG.md.
"""

from __future__ import annotations

import json
import re

import pytest

from robomimic_ddp import cli, errors
from tests.patches.support import snapshot

CHOICE = ["--only", "--with", "--without"]
FLAGS = {
    "status": ["[PATH]", *CHOICE, "--json"],
    "diff": ["[PATH]", *CHOICE],
    "apply": ["[PATH]", *CHOICE, "--dry-run", "--check", "--branch"],
    "revert": ["[PATH]", "--force"],
    "inspect-data": ["[path]", "--output", "--episodes", "--config", "--cache", "--json"],
    "run": ["PROGRAM ...", "-m", *CHOICE, "--host"],
}
STATUS_KEYS = {
    "host",
    "built_on",
    "state",
    "seams",
    "problems",
    "already_distributed",
    "files_to_edit",
    "files_in_record",
}
SEAM_KEYS = {"seam", "fixer", "required", "file", "lines", "outcome"}
MORE_SEAM_KEYS = {"reason", "why", "by_hand", "note"}
OUTCOMES = {"patched", "can be patched", "not present", "not recognised"}
STATES = {"patched", "partly patched", "not patched", "blocked", "already distributed"}


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


def status(command, host) -> dict:
    _, out, err = command("status", host, "--json")
    content = json.loads(out)
    assert set(content) == STATUS_KEYS and not err
    assert content["state"] in STATES
    for seam in content["seams"] + content["problems"]:
        assert SEAM_KEYS <= set(seam) <= SEAM_KEYS | MORE_SEAM_KEYS
        assert seam["outcome"] in OUTCOMES
        assert ("reason" in seam) == (seam["outcome"] == "not present")
        assert ("by_hand" in seam) == (seam["outcome"] == "not recognised")
    return content


def outcomes(content: dict) -> set[str]:
    return {seam["outcome"] for seam in content["seams"]}


def test_the_five_classes_of_status(host, command):
    assert outcomes(status(command, host)) == {"can be patched", "not present"}
    command("apply", host)
    assert outcomes(status(command, host)) == {"patched", "not present"}
    path = host / "utils/train_utils.py"
    path.write_text(
        path.read_text().replace("DDPUtils.save(model, path)", "torch.save(model, f=path)")
    )
    content = status(command, host)
    assert outcomes(content) == {"patched", "not present", "not recognised"}, content
    assert content["state"] == "blocked"
    (host / "scripts/train_mine.py").write_text(
        "from accelerate import Accelerator\nAccelerator()\n"
    )
    content = status(command, host)
    assert content["state"] == "already distributed"
    assert set(content["already_distributed"]) == {"found", "places", "why"}
    assert content["already_distributed"]["places"] == [
        {"file": "scripts/train_mine.py", "line": 2, "what": "accelerate"}
    ]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status"], 0),
        (["diff"], 0),
        (["apply", "--check"], 1),
        (["apply", "--dry-run"], 0),
        (["apply", "--only", "cuda_device", "--dry-run"], 0),
        (["apply", "--with", "data_parallel", "--dry-run"], 0),
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
