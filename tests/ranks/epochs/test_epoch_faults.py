"""A training epoch whose loss breaks, or that is stopped: which step is named, what is kept."""

from __future__ import annotations

import math
import os
import signal

import pytest

from robomimic_ddp.errors import LossError, Stopped
from robomimic_ddp.training import run
from tests.faults import toy_run
from tests.ranks.pool import RankError


def break_the_loss(number):
    """Plants a loss that is NaN in step `number`, counted from 1."""

    def plant(job):
        loss = job.algo.loss
        if job.step_number == number - 1:
            job.loss = lambda batch: loss(batch) * math.nan

    return plant


def reached_the_end(job):
    raise AssertionError("a checkpoint is written here")


def alarm(number):
    """What a run says whose loss breaks in step `number`."""
    with pytest.raises(LossError) as caught:
        toy_run.train(
            toy_run.ToyJob({"step": break_the_loss(number), "epoch ends": reached_the_end})
        )
    return str(caught.value)


@pytest.mark.parametrize("number", [2, toy_run.STEPS])
def test_a_loss_that_is_nan_ends_the_run_and_names_its_step(number, ranks):
    for rank, text in enumerate(ranks.run(alarm, number)):
        assert f"rank {rank} of 2, epoch 1: the loss is nan at step {number}, though" in text


def stop_in_step(number, is_broken):
    """A signal comes in step `number`, whose loss may be NaN; the steps whose logs are kept."""

    def plant(job):
        if job.step_number == number - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
            if is_broken:
                break_the_loss(number)(job)
        job.part = run.current().progress.part

    job = toy_run.ToyJob({"step": plant})
    with pytest.raises(Stopped):
        toy_run.train(job)
    return len(job.part.step_logs), job.part.steps


def test_a_stop_inside_an_epoch_keeps_the_log_of_its_last_step(ranks):
    call = {"world_size": 1}
    assert ranks.run(stop_in_step, 2, False, **call) == [(2, 2)]
    with pytest.raises(RankError) as caught:
        ranks.run(stop_in_step, 2, True, **call)
    assert "the loss is nan at step 2" in caught.value.by_rank[0], "before anything is saved"
