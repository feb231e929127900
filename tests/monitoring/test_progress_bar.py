"""What is shown of an epoch while it lasts, and the pace that it is given."""

from __future__ import annotations

import fcntl
import io
import os
import re
import select
import struct
import sys
import termios
from types import SimpleNamespace
from typing import Any

import pytest

from robomimic_ddp.monitoring import progress_bar, step_hooks, throughput


class Clock:
    """Seconds that pass only when a test lets them."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Model:
    def process_batch_for_training(self, batch: Any) -> Any:
        return batch

    def log_info(self, info: Any) -> dict:
        return {"Loss": 0.25, "Optimizer/policy0_lr": 1e-4}


LogUtils = SimpleNamespace(custom_tqdm=lambda steps: pytest.fail("the host's own bar was used"))


def run_epoch(model, clock, num_steps, wait, work):
    """Looks its progress bar up in the module of the log's utilities, as the host's does."""
    logs = []
    for _ in LogUtils.custom_tqdm(range(num_steps)):
        clock.now += wait
        model.process_batch_for_training({})
        clock.now += work
        logs.append(model.log_info({}))
    return logs


def shown(
    monkeypatch, terminal: bool, steps: int = 4, **kwargs: Any
) -> tuple[str, throughput.Pace]:
    """What an epoch prints; each step waits 1 s for data and works 3 s."""
    out = io.StringIO()
    out.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=out.write, flush=out.flush))
    monkeypatch.setattr(sys.stdout, "terminal", out, raising=False)  # as the host's PrintLogger
    clock = Clock()
    timer = throughput.Pace(clock)
    display = progress_bar.Progress("epoch 3", timer, samples_per_step=32, **kwargs)
    model = Model()
    with progress_bar.in_place_of_hosts(run_epoch, display):
        with step_hooks.installed(model, [timer, display]):
            run_epoch(model, clock, steps, 1.0, 3.0)
    return out.getvalue(), timer


def test_the_last_step_has_a_line_where_there_is_no_terminal(monkeypatch):
    text, timer = shown(monkeypatch, False, epochs_left=2)
    assert text == (
        "epoch 3: step 4/4, 0.25 steps/s, 8 samples/s, loss 0.25, lr 0.0001, data wait 25%, "
        "ETA 0:00:00, training ends in 0:00:32\n"
    )
    assert (timer.steps, timer.seconds, timer.data_share()) == (4, 16.0, 0.25)


def test_a_long_epoch_has_lines_on_the_way(monkeypatch):
    monkeypatch.setattr(progress_bar, "LINE_SECONDS", 0.0)
    text, _ = shown(monkeypatch, False, done_before=6, tells_end=False)
    lines = text.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"epoch 3: step {number}/10" for number in (7, 8, 9, 10)
    ]
    assert lines[0].endswith("ETA 0:00:12")  # three steps of 4 s


def test_validation_is_silent_when_it_is_short(monkeypatch):
    assert shown(monkeypatch, False, tells_end=False)[0] == ""


def test_of_a_host_with_another_bar_no_end_is_reported(monkeypatch):
    out, clock = io.StringIO(), Clock()
    monkeypatch.setattr(sys, "stdout", out)
    timer = throughput.Pace(clock)
    display = progress_bar.Progress("epoch 3", timer, samples_per_step=32, epochs_left=2)
    for seconds in (progress_bar.LINE_SECONDS, 0.0):
        monkeypatch.setattr(progress_bar, "LINE_SECONDS", seconds)
        with step_hooks.installed(Model(), [timer, display]):
            clock.now += 4.0
            timer.done()
            display.step({"Loss": 0.25}, {})
    (line,) = out.getvalue().splitlines()
    assert line.startswith("epoch 3: step 2, ") and line.endswith("data wait 0%")


def test_other_ranks_show_nothing_and_the_hosts_bar_is_put_back(monkeypatch):
    before = LogUtils.custom_tqdm
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with progress_bar.in_place_of_hosts(run_epoch, None):
        assert len(run_epoch(Model(), Clock(), 3, 1.0, 1.0)) == 3
    assert out.getvalue() == "" and LogUtils.custom_tqdm is before


@pytest.mark.parametrize(("columns", "seen"), [(60, "samples/s"), (80, "loss 0.25, lr 0.0001")])
def test_the_bar_fits_the_terminal_that_is_not_standard_output(columns, seen, monkeypatch):
    """The host puts its PrintLogger there, and tqdm asks nothing else for its width."""
    main, side = os.openpty()
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(side, "w", closefd=True) as terminal:
        logger = SimpleNamespace(write=terminal.write, flush=terminal.flush, terminal=terminal)
        monkeypatch.setattr(sys, "stdout", logger)
        display = progress_bar.Progress("epoch 3", throughput.Pace(), samples_per_step=32)
        for _ in display.over(range(2)):
            display.step({"Loss": 0.25, "Optimizer/policy0_lr": 1e-4}, None)
        display._bar.refresh()
        display.close()
        drawn = ""
        while seen not in drawn and select.select([main], [], [], 10.0)[0]:  # it comes in parts
            drawn += os.read(main, 10000).decode()
    os.close(main)
    lines = re.split("[\r\n]+", drawn.replace("\x1b[A", ""))
    assert max(map(len, lines)) <= columns
    assert any("epoch 3: 100%" in line and " left" in line and seen in line for line in lines)


def test_other_ranks_draw_no_bar_of_the_hosts(capsys):
    from tqdm import tqdm, trange

    class Bar(tqdm):
        pass

    with progress_bar.without_bars():
        assert list(tqdm(range(3))) == list(trange(3)) == list(Bar(range(3), file=sys.stdout))
    assert capsys.readouterr() == ("", "")
    list(tqdm(range(3)))
    assert "3/3" in capsys.readouterr().err
