"""Saves and resumes the toy model on real ranks: what each rank restores.

That a run continues to the bit: test_resumed_host.py; which files are kept: tests/checkpoint.
"""

from __future__ import annotations

import contextlib
import io

import torch
from torch.optim.lr_scheduler import LambdaLR

from robomimic_ddp.checkpoint import STATE, FoundRun
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.training.presets import Prepared
from robomimic_ddp.training.state import state_saver
from tests.ranks.running import running, train
from tests.ranks.toy import make_algo
from tests.versions import NEEDS_CPU_FP16


def streams_of(directory):
    """The first number of this rank's stream after it resumed."""
    with running(directory, FoundRun(directory, "state")) as run:
        algo = make_algo()
        saver = state_saver.StateSaver(run, algo)
        rng.seed_streams(7, group.rank())
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            saver.restore()
        return torch.get_rng_state().sum().item(), printed.getvalue()


def test_ranks_that_did_not_exist_draw_from_new_streams(ranks, tmp_path):
    ranks.run(train, tmp_path, [0.5, 0.4])
    saved = read_file(tmp_path / STATE)
    found = ranks.run(streams_of, tmp_path, world_size=3)
    streams = [stream for stream, _ in found]
    assert streams[:2] == [rank["random"]["torch"].sum().item() for rank in saved["ranks"]]
    with rng.kept():
        rng.seed_streams(7, 2)
        first_life = torch.get_rng_state().sum().item()
    assert streams[2] not in (*streams[:2], first_life)
    text = found[0][1]
    assert "world size: 2 -> 3; rank 2 begins new random streams" in text
    assert "samples per step: 8 -> 12" in text and "learning rate: 0.01, as saved" in text


def test_a_schedule_of_another_length_is_said(tmp_path, capsys):
    """A run that has ended and is prolonged: its rate was 0, and is not any more."""

    def algo_of(steps):
        algo = make_algo("single")
        rate = LambdaLR(algo.optimizers["policy"], lambda step: max(0, 1 - step / steps))
        algo.lr_schedulers = {"policy": [rate]}
        return algo

    with running(tmp_path) as run:
        algo = algo_of(4)
        for _ in range(4):
            algo.optimizers["policy"].step()
            algo.lr_schedulers["policy"][0].step()
        saver = state_saver.StateSaver(run, algo)
        saver.restore()
        saver.epoch_end(1)
    for steps in (4, 8):
        with running(tmp_path, FoundRun(tmp_path, "state")) as run:
            state_saver.StateSaver(run, algo_of(steps)).restore()
        text = " ".join(capsys.readouterr().out.split())
        assert "learning rate: 0, as saved" in text
        assert ("is longer or shorter, and gives 0.005 at this step" in text) == (steps == 8)


def keep_scaler(directory, scale, found=None):
    """The scale of fp16's gradients after it resumed, if `found`; else it is saved."""
    with running(directory, found) as run:
        run.steps = Prepared("", torch.amp.GradScaler("cpu", init_scale=scale))
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        if found is None:
            saver.epoch_end(1)
        return run.steps.scaler.get_scale()


@NEEDS_CPU_FP16
def test_the_scale_of_gradients_resumes(ranks, tmp_path):
    assert ranks.run(keep_scaler, tmp_path, 1024.0) == [1024.0] * 2
    assert read_file(tmp_path / STATE)["grad_scaler"]["scale"] == 1024.0
    assert ranks.run(keep_scaler, tmp_path, 2.0, FoundRun(tmp_path, "state")) == [1024.0] * 2
