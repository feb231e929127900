"""Buffers that each rank's training updates by its own batches, as BatchNorm's running means."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from robomimic_ddp.errors import Stopped
from tests.faults import toy_run


def add_buffer(job):
    job.algo.nets.register_buffer("mean", torch.zeros(1))


def update_buffer(job):
    job.algo.nets.mean.add_(1 + job.rank)


def means(verify: bool) -> list:
    """After the training steps, where validation begins; and after the epoch, in which each rank
    has acted with updates of the buffer.
    """
    after_training = []

    def act(job):
        after_training.append(job.algo.nets.mean.item())
        update_buffer(job)

    job = toy_run.ToyJob({"construction": add_buffer, "stepped": update_buffer, "epoch ends": act})
    job.options = {"verify": verify}
    toy_run.train(job)
    return [*after_training, job.algo.nets.mean.item()]


@pytest.mark.parametrize("verify", [True, False])
def test_every_rank_validates_and_saves_with_the_main_ranks(verify, ranks):
    assert ranks.run(means, verify) == [[toy_run.STEPS, toy_run.STEPS + 1]] * 2


def mean_of_stopped_epoch() -> float:
    """A signal comes in the last step of an epoch."""

    def step(job):
        update_buffer(job)
        if job.step_number == toy_run.STEPS - 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    job = toy_run.ToyJob({"construction": add_buffer, "stepped": step})
    with pytest.raises(Stopped):
        toy_run.train(job)
    return job.algo.nets.mean.item()


def test_a_run_that_stops_after_the_last_step_saves_the_main_ranks(ranks):
    assert ranks.run(mean_of_stopped_epoch) == [toy_run.STEPS] * 2
