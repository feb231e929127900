"""Schedules that count steps come to each place after 1/N of them, and are put back."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from torch.optim import lr_scheduler

from robomimic_ddp.errors import PlanError
from robomimic_ddp.training.step.schedule import present_rates, shorten

MADE = {
    "warm-up": lambda one: lr_scheduler.LambdaLR(one, lambda at: min(1.0, (at + 1) / 8)),
    "multistep": lambda one: lr_scheduler.MultiStepLR(one, [4, 8], 0.1),
    "multistep from the start": lambda one: lr_scheduler.MultiStepLR(one, [0, 8], 0.1),
    "milestones that meet": lambda one: lr_scheduler.MultiStepLR(one, [3, 5, 6, 9], 0.1),
    "linear": lambda one: lr_scheduler.LinearLR(one, 1.0, 0.1, total_iters=8),
    "cosine": lambda one: lr_scheduler.CosineAnnealingLR(one, 12),
}


def algo_of(make, every_batch: bool) -> SimpleNamespace:
    made = make(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0))
    lists = {"policy": [made], "value": None}
    return SimpleNamespace(
        lr_schedulers=lists, step_lr_schedulers_every_batch=dict.fromkeys(lists, every_batch)
    )


def rates(algo: SimpleNamespace, steps: int) -> list[float]:
    (schedule,) = algo.lr_schedulers["policy"]
    found = [schedule.optimizer.param_groups[0]["lr"]]
    for _ in range(steps - 1):
        schedule.optimizer.step()
        schedule.step()
        found.append(schedule.optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("kind", MADE)
def test_shortened(kind):
    whole, short, by_epoch = (algo_of(MADE[kind], every) for every in (True, True, False))
    with ExitStack() as undo:
        shorten(short, 4, undo)
        shorten(by_epoch, 4, undo)
        expected = rates(whole, 12)
        assert rates(short, 3) == pytest.approx(expected[::4])
        assert rates(by_epoch, 12) == expected
    before = algo_of(MADE[kind], True).lr_schedulers["policy"][0]
    (after,) = short.lr_schedulers["policy"]
    for name in ("milestones", "total_iters", "T_max"):
        assert getattr(after, name, None) == getattr(before, name, None)


@pytest.mark.parametrize(("length", "factor", "steps"), [(10, 3, 4), (9, 4.5, 2), (21, 1.4, 15)])
def test_a_cosine_ends_with_the_run_and_does_not_rise(length, factor, steps):
    algo = algo_of(lambda one: lr_scheduler.CosineAnnealingLR(one, length), True)
    with ExitStack() as undo:
        shorten(algo, factor, undo)
        found = rates(algo, steps + 1)
    assert found == sorted(found, reverse=True) and found[-1] == pytest.approx(0.0, abs=1e-12)
    assert found[-2] > 0.01


def test_present_rates_are_those_of_the_function_at_its_place():
    half = algo_of(lambda one: lr_scheduler.LambdaLR(one, lambda at: 0.5**at), True)
    (schedule,) = half.lr_schedulers["policy"]
    schedule.base_lrs, schedule.last_epoch = [0.1], 2
    assert [*present_rates(half)] == pytest.approx([0.025])
    assert [*present_rates(algo_of(MADE["cosine"], True))] == []


def test_a_schedule_of_unknown_length():
    algo = algo_of(lambda one: lr_scheduler.ExponentialLR(one, 0.9), True)
    with ExitStack() as undo:
        shorten(algo, 1, undo)  # it stays as long as it is
        shorten(SimpleNamespace(), 2, undo)
        shorten(SimpleNamespace(lr_schedulers=algo.lr_schedulers), 2, undo)
    with ExitStack() as undo, pytest.raises(PlanError, match="cannot shorten ExponentialLR"):
        shorten(algo, 2, undo)
