"""What `robomimic-ddp watch` says of a run, how it ends, and the command that resumes the run."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from robomimic_ddp import cli
from robomimic_ddp.monitoring.records import run_summary
from tests.checkpoint import small
from tests.heartbeats import beat, write
from tests.hosts import ROOT, environment

COMMAND = "cd /a/folder && torchrun --nproc_per_node=2 -m robomimic.scripts.train --config /a/cfg"


@pytest.fixture
def run(tmp_path):
    """`run(outcome=.., **changes of its heartbeats)`: the folder of a run of two ranks."""

    def make(outcome=None, stopped=None, **changes):
        folder = tmp_path / "lift" / "20260101120000"
        state = {"epoch": 3, "epochs": 20, "steps": 100, "step_seconds": 0.5, "data_share": 0.03}
        write(folder, *(beat(rank, **{**state, **changes}) for rank in range(2)))
        record = {"plan": {"samples_per_step": 64}, "saved": {"epoch": 2}, "resume": COMMAND}
        if outcome:
            record["outcome"] = outcome
        (folder / "ddp.json").write_text(json.dumps(record))
        (folder / "ddp_state.pth").touch()
        if stopped:
            (folder / "requeue").write_text(json.dumps({"stopped": stopped, "resume": COMMAND}))
        return folder

    return make


def once(folder, capsys):
    assert cli.main(["watch", "--once", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


def test_how_far_and_how_fast_it_is(run, capsys):
    first, speed, saved, *_ = once(run(), capsys)
    assert first == "run lift/20260101120000: epoch 3 of 20, step 40 of 100"
    # 60 steps of this epoch and 1700 of others, of 0.5 s
    assert speed == "speed: 128 samples/s, data wait 3%, training ends in 0:14:40"
    assert re.fullmatch(r"last save: after epoch 2, 0:00:0\d ago", saved)


def test_a_run_that_has_stopped(run, capsys):
    stopped = "in epoch 3 after 40 steps of it"
    lines = once(run(ended="ended", stopped=stopped), capsys)
    assert re.fullmatch(r"last save: 0:00:0\d ago", lines[1])  # inside epoch 3, not after epoch 2
    assert f"stopped {stopped}" in lines and not any("samples/s" in line for line in lines)
    assert lines[-1] == f"  {COMMAND}"


def test_a_finished_run_has_no_command(run, capsys):
    assert COMMAND not in "\n".join(once(run(outcome={"steps": 5}, finished=True), capsys))


def test_what_is_not_known_is_left_out(run, capsys):
    folder = run(step_seconds=None, epochs=None, steps=None, data_share=None)
    for name in ("ddp.json", "ddp_state.pth"):
        (folder / name).unlink()
    lines = once(folder, capsys)
    assert lines[0] == "run lift/20260101120000: epoch 3, step 40"
    assert lines[1] == "last save: none yet" and "rank" in lines[2]


@pytest.mark.bad_input
@pytest.mark.parametrize("text", ["{", "[]", "3", '{"plan": 1, "saved": [], "resume": 5}'])
def test_a_damaged_record_is_as_none(text, run, capsys):
    folder = run(steps=10**14, epochs=10**14)
    (folder / "ddp.json").write_text(text)
    (folder / "requeue").write_text(text)
    assert "step 40 of" in once(folder, capsys)[0]


def test_ckpt_show_has_the_command_of_the_checkpoints_run(run, capsys):
    folder = run()
    for path in (folder / "last.pth", folder / "models" / "model_epoch_2.pth"):
        assert cli.main(["ckpt", "show", str(small.write(path))]) == 0
        assert capsys.readouterr().out.endswith(f"its run can be resumed:\n  {COMMAND}\n")
    assert run_summary.directory_of(folder.parent / "elsewhere.pth") is None


def in_a_terminal(folder, end):
    """Runs `watch` in a terminal of 80 columns, calls end(process) when it shows the run;
    returns its exit code and what it wrote.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "robomimic_ddp", "watch", str(folder)],
        env={**environment(None), "PYTHONPATH": str(ROOT), "COLUMNS": "80", "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    timer = threading.Timer(60, process.kill)
    timer.start()
    written, asked = b"", False
    try:
        while chunk := _read(ours):
            written += chunk
            if not asked and b"last save" in written and b"rank" in written:
                asked = True
                end(process)
        return process.wait(), written.decode()
    finally:
        timer.cancel()
        os.close(ours)


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # its last process has ended
        return b""


def test_it_ends_when_asked_and_fits_the_terminal(run):
    code, text = in_a_terminal(run(), lambda process: process.send_signal(2))
    lines = re.sub(r"\x1b\[[0-9]*[AKhl]|\r", "\n", text)  # the cursor moves to another line
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", lines)
    assert code == 0 and "Traceback" not in shown, shown
    *screen, last = [line for line in shown.split("\n") if line]
    assert last == f"  {COMMAND}", shown
    assert "Ctrl-C closes this view" in shown
    assert max(map(len, screen)) <= 80, screen


def test_it_ends_with_the_run(run):
    code, text = in_a_terminal(run(finished=True, outcome={"steps": 1}), lambda *_: None)
    assert code == 0 and "epoch 3 of 20" in text
    assert "resume it with" not in text and "Ctrl-C" not in text
