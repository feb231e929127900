"""Ranks that were asked to stop do so after the same step, whoever heard the signal, and when."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from robomimic_ddp import group, stopping
from robomimic_ddp.stopping import Stopper
from tests.ranks.pool import RankError


def stop_after(asked_rank, asked_step, number, times):
    """The step after which this rank stops; other collectives run between, as in training."""
    before = signal.getsignal(number)
    stopper = Stopper()
    with stopper.scope():
        stopper.listen()
        for step in range(1, 10):
            if group.rank() == asked_rank and step == asked_step:
                for _ in range(times):
                    os.kill(os.getpid(), number)
            total = group.sum_over_ranks(torch.ones(5))
            assert total.tolist() == [group.world_size()] * 5
            if stopper.agreed():
                break
    assert signal.getsignal(number) == before
    return step, stopper.heard


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("asked_rank, asked_step", [(0, 1), (1, 4)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_all_ranks_stop_after_the_same_step(world, asked_rank, asked_step, number, ranks):
    found = ranks.run(stop_after, asked_rank, asked_step, number, 2, world_size=world)
    assert [step for step, _ in found] == [asked_step + 1] * world
    heard = [name for _, name in found]
    assert heard[asked_rank] == signal.Signals(number).name and heard.count(None) == world - 1


def test_nobody_stops_unasked(ranks):
    assert ranks.run(stop_after, 5, 1, signal.SIGUSR1, 1) == [(9, None)] * 2


def between_epochs(asked_rank, last_step):
    """Asked in the last step of an epoch: its answer is still on its way when the epoch ends."""
    stopper, answers = Stopper(), []
    with stopper.scope():
        stopper.listen()
        for epoch in range(3):
            for step in range(3):
                if (group.rank(), epoch, step) == (asked_rank, 1, last_step):
                    os.kill(os.getpid(), signal.SIGUSR1)
                assert not stopper.agreed() or last_step < 2
            answers.append(stopper.agreed_at_last())
            if answers[-1]:
                return answers
    return answers


@pytest.mark.parametrize("asked_rank, expected", [(0, [False, True]), (7, [False] * 3)])
def test_between_epochs(asked_rank, expected, ranks):
    assert ranks.run(between_epochs, asked_rank, 2) == [expected] * 2


def test_one_process():
    stopper = Stopper()
    assert not stopper.agreed() and not stopper.agreed_at_last()
    with stopper.scope():
        stopper.listen()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stopper.agreed() and stopper.agreed_at_last()


def simulate_for_ever(seconds):
    """No place to stop at: as a rank in a rollout of a job that has failed."""
    stopping.PATIENCE_SECONDS = 0.2
    stopper = Stopper()
    with stopper.scope():
        stopper.listen()
        if group.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(seconds)


def test_patience_ends(ranks):
    with pytest.raises(RankError, match=f"died with exit code {128 + signal.SIGTERM}"):
        ranks.run(simulate_for_ever, 60)
