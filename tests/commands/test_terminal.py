"""What commands print is as wide as the terminal, and whole lines elsewhere."""

from __future__ import annotations

import sys

import pytest

from robomimic_ddp import cli, terminal
from robomimic_ddp.commands.doctor import command as doctor

WORDS = "training meets " * 12
LONG = "/a/folder/" + "x" * 90


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
    assert cli.main(["status", "nowhere", "--only", "nothing"]) == 2
    assert screen.text.startswith("robomimic-ddp: no edit or area is named 'nothing'")
    with pytest.raises(SystemExit):
        cli.main(["nonsense"])
    assert "robomimic-ddp: error: argument COMMAND: invalid choice" in screen.text
    assert max(map(len, screen.text.splitlines())) <= 80
