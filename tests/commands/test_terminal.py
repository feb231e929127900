"""What commands print is as wide as the terminal, and whole lines elsewhere."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import h5py
import pytest
import torch
from optuna.trial import TrialState

from robomimic_ddp import cli, terminal
from robomimic_ddp.commands.doctor import command as doctor
from robomimic_ddp.commands.sweep import new, space, study
from robomimic_ddp.patches import commands as patches
from tests import heartbeats
from tests.configs import make_config, write_config
from tests.datasets import make_hdf5
from tests.patches.support import write_host

WORDS = "training meets " * 12
LONG = "/a/folder/" + "x" * 90


@pytest.mark.bad_input
@pytest.mark.parametrize("text", ["1", "10", "0", "11", "-1", "2.5", "2,3", "two", "", "9" * 5000])
def test_a_whole_number_is_within_its_limits(text):
    convert = terminal.whole_number(1, 10)
    if text in ("1", "10"):
        assert convert(text) == int(text)
        return
    with pytest.raises(ArgumentTypeError, match=f"{text}: expected a whole number from 1 to 10"):
        convert(text)


class Terminal:
    """stdout or stderr of a terminal of 80 columns."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


def screen_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """In the test itself: pytest replaces both streams between a fixture and its test."""
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_prose_is_broken_at_spaces_and_paths_and_commands_are_not():
    command = f"`robomimic-ddp apply {LONG}`"
    lines = terminal.wrapped(f"{WORDS} {LONG} {command}\n  a second line", 80, "      ", "ok    ")
    assert [line for line in lines if len(line) > 80] == [f"      {LONG}", f"      {command}"]
    assert lines[0].startswith("ok    training meets") and lines[1].startswith("      training")
    assert lines[-1] == "        a second line"
    assert terminal.wrapped(WORDS, None) == [WORDS]


def test_the_last_columns_of_a_wide_table_are_below():
    rows = [("rank", "state", "at"), ("0/2", "trains", "epoch 2 of " + "a long place " * 3)]
    assert terminal.table(rows, 200) == terminal.table(rows, None)
    assert [line.count("\n") for line in terminal.table(rows, None)] == [0, 0]
    head, line = terminal.table(rows, 30)
    assert head == "rank  state\n    at"
    assert line.splitlines()[0] == "0/2   trains"
    assert line.splitlines()[1] == "    epoch 2 of a long place a"
    assert max(map(len, line.splitlines())) <= 30


def test_the_findings_of_doctor_fit(monkeypatch):
    screen = screen_of(monkeypatch)
    finding = doctor.Finding("memory", doctor.WARN, WORDS, f"{WORDS} `pip install {LONG}`")
    monkeypatch.setattr(doctor, "examine", lambda _: [finding])
    assert cli.main(["doctor"]) == 0
    lines = screen.text.replace("\033[33m", "").replace("\033[0m", "").splitlines()
    assert [line for line in lines if len(line) > 80] == [f"         `pip install {LONG}`"]
    assert lines[0].startswith("warn  memory: training") and lines[1].startswith("      training")


@pytest.mark.bad_input
def test_an_error_fits(monkeypatch):
    screen = screen_of(monkeypatch)
    assert cli.main(["status", "--with", "nothing"]) == 2
    assert screen.text.startswith("robomimic-ddp: no edit or area is named 'nothing'")
    with pytest.raises(SystemExit):
        cli.main(["nonsense"])
    assert "robomimic-ddp: error: argument COMMAND: invalid choice" in screen.text
    assert max(map(len, screen.text.splitlines())) <= 80


HOSTILE = "\033]0;title\007\033[2J\033[31mred\033[0m\r\b\x9b1m\x9d8;;http://x\x9c\033Pq\033\\\u202e\u200f\u061cabc\0\033"
NAME = HOSTILE.replace("/", "").replace("\0", "")
"""As a file may be named."""


@pytest.mark.bad_input
def test_what_controls_a_terminal_is_not_printed(capsys):
    assert terminal.clean(HOSTILE) == "redabc"
    assert terminal.clean("two\nlines\té 数据") == "two\nlines\té 数据"
    assert terminal.table([("a", f"{HOSTILE}\nb")], None) == ["a  redabc b"]
    terminal.say(f"{HOSTILE}\n`a command`")
    terminal.print_clean(HOSTILE, sys.stderr, ("red", "\033[1m"))
    assert capsys.readouterr() == ("redabc\n`a command`\n", "\033[1mred\033[0mabc\n")


def heartbeat(folder):
    heartbeats.write(folder, heartbeats.beat(host=HOSTILE, place=HOSTILE))
    return ["watch", "--once", str(folder)]


def checkpoint(folder):
    nets = {f"policy.{HOSTILE}": torch.zeros(2)}
    content = {"model": {"nets": nets}, "algo_name": HOSTILE, "config": "{}", HOSTILE: 1}
    torch.save(content, folder / "a.pth")
    return ["ckpt", "show", "--keys", str(folder / "a.pth")]


def run(folder):
    folder = folder / NAME
    folder.mkdir()
    record = {"epoch": 1, "phase": HOSTILE, "log": {HOSTILE: 1.0}}
    (folder / "history.jsonl").write_text(json.dumps(record) + "\n")
    return ["plot", str(folder), "-o", str(folder / "curves.png")]


def dataset(folder):
    path = make_hdf5(folder / "data.hdf5")
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo["obs"][NAME] = demo["actions"][:]
    return ["inspect-data", str(path)]


def edits(command):
    return lambda folder: [command, str(write_host(folder / NAME))]


def config(folder, change=None):
    (folder / "data.hdf5").touch()
    settings = make_config("bc", folder / "data.hdf5", folder / NAME, change)
    return str(write_config(folder / f"{NAME}.json", settings))


def trial(folder):
    new.make(folder / NAME, Path(config(folder)), space.parse(["train.seed=1,2"]))
    made = study.Sweep(folder / NAME)
    entry = made.trials()[0]
    made.study._storage.set_trial_user_attr(entry._id, "error", HOSTILE)
    for state in ("RUNNING", "FAIL"):
        made.study._storage.set_trial_state_values(entry._id, getattr(TrialState, state))
    return ["sweep", "show", str(folder / NAME)]


def sources(folder):
    host = write_host(folder / "host")
    for file in host.rglob("*.py"):
        text = file.read_text().replace("(model, path):", "(model, path):  # \x1b[31mredabc\u202e")
        file.write_text(text)
    return ["diff", str(host)]


ROWS = {
    "watch": heartbeat,
    "ckpt": checkpoint,
    "plot": run,
    "inspect-data": dataset,
    **{command: edits(command) for command in ("status", "apply", "revert")},
    "run": lambda folder: ["run", "--host", str(write_host(folder)), NAME],
    "launch": lambda folder: ["launch", "--config", config(folder), "--dry-run"],
    "evaluate": lambda folder: ["evaluate", str(folder / NAME)],
    "sweep": trial,
    "diff": sources,
    "doctor": lambda folder: ["doctor"],
    "prepare-data": lambda folder: ["prepare-data", "--size", "8x8", *[str(folder / NAME)] * 2],
    "bench": lambda folder: ["bench", "--ranks", "1", "--config", str(folder / NAME)],
}


@pytest.mark.bad_input
@pytest.mark.parametrize("command", cli.COMMANDS)
def test_no_command_prints_the_escape_sequences_of_a_stranger(
    command, tmp_path, capfd, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    finding = doctor.Finding(HOSTILE, doctor.WARN, HOSTILE, HOSTILE)
    monkeypatch.setattr(doctor, "examine", lambda _: [finding])
    monkeypatch.setattr(patches, "width", lambda stream=None: 80)  # in a pipe the diff is for git
    for name in ("path", "meta_path"):  # `run` edits what is imported in this process
        monkeypatch.setattr(sys, name, [*getattr(sys, name)])
    words = ROWS[command](tmp_path)
    capfd.readouterr()
    cli.main(words)
    out, err = capfd.readouterr()
    assert "redabc" in out + err
    assert not set(out + err) & set("\033\r\b\x9b\x9d\u202e\u200f\u061c")
