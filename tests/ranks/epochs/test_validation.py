"""Validation on several ranks: each draws different noise, and training does not depend on it."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.data.sampling import train_loader, valid_loader
from robomimic_ddp.distributed import rng, watchdog
from robomimic_ddp.monitoring.step_logs import EpochPart
from robomimic_ddp.training import epoch as seam
from tests.ranks.hosts import Algo, a_loader, epoch_log, real_run_epoch
from tests.ranks.running import running


class Scheduled(Algo):
    """Counts the steps of its learning-rate schedule."""

    schedule_steps = 0

    def on_gradient_step(self):
        self.schedule_steps += 1


def schedule_steps():
    """(after 2 steps of training, after validation, after 2 more of training)"""
    algo, run_epoch, steps = Scheduled(), epoch_log(real_run_epoch()), []
    for validate in (False, True, False):
        make = valid_loader if validate else train_loader
        loader = a_loader(make, shuffle=False, batch_size=1 if validate else 2)
        run_epoch(algo, loader, 1, validate=validate, num_steps=None if validate else 2)
        steps.append(algo.schedule_steps)
    return steps


def test_the_learning_rate_schedule_waits_while_ranks_validate(ranks):
    """Two ranks have 6 and 5 of 11 batches: their learning rates would part."""
    assert ranks.run(schedule_steps, timeout=115.0) == [[2, 2, 4]] * 2


def drawing_run_epoch(model, data_loader, epoch, validate=False, num_steps=None):
    """A host whose loss takes noise from all three global streams."""
    model.drawn.append([torch.rand(()).item(), np.random.rand(), random.random()])
    return {}


def noise(directory):
    """What each of two epochs' validation draws, twice; the streams before and after."""
    with running(directory):
        algo = Algo()
        algo.drawn = []
        rng.seed(3)
        before = str(rng.capture())
        for number in (1, 2, 1):
            seam.epoch_log(drawing_run_epoch)(algo, [], number, validate=True, num_steps=0)
        return algo.drawn, before == str(rng.capture())


def test_validation_noise_differs_between_ranks_and_epochs(ranks, tmp_path):
    found = ranks.run(noise, tmp_path)
    assert all(untouched for _, untouched in found)
    drawn = [each for rank, _ in found for each in rank]
    for stream in zip(*drawn):
        first, second, again = stream[:3]
        assert again == first != second
        assert not set(stream[:3]) & set(stream[3:]), "ranks validate with the same noise"


def noise_of_training(directory):
    with running(directory) as run:
        algo, drop_iterator = Algo(), []
        run.built.loaders["train"] = SimpleNamespace(drop_iterator=lambda: drop_iterator.append(1))
        algo.drawn = []
        rng.seed(3)
        seam.epoch_log(drawing_run_epoch)(algo, [], 1, num_steps=0)
        rng.seed(3)
        assert drop_iterator == [1], "the next epoch would continue the pass that the host has left"
        return algo.drawn == [[torch.rand(()).item(), np.random.rand(), random.random()]]


def test_training_draws_from_the_hosts_streams(ranks, tmp_path):
    assert ranks.run(noise_of_training, tmp_path) == [True] * 2


def validate_in_a_stopped_epoch():
    """A stop that is heard in validation has no place to be saved; sums of training stay."""
    part = EpochPart(after_step=stopping)
    part.steps, part.logs.samples = 2, 8
    loader, reached = a_loader(valid_loader, shuffle=False), []
    log = epoch_log(real_run_epoch(), part)(Algo(), loader, 1, validate=True)
    with swapped(watchdog, "reached", reached.append):
        epoch_log(real_run_epoch(), part)(Algo(), loader, 1, validate=True)
    assert reached == ["epoch 1 validation", "epoch 1 validation log"]
    return log["Loss"], part.steps, part.logs.samples


def stopping():
    raise AssertionError("stopped inside validation")


def test_validation_is_no_part_of_the_train_epoch(ranks):
    expected = float(np.mean(np.arange(11) ** 2.0))
    found = ranks.run(validate_in_a_stopped_epoch, timeout=115.0)
    assert found == [(pytest.approx(expected, rel=1e-6), 2, 8)] * 2
