"""Hooks see a step in one order, whoever installs them first; stand-ins are beneath them all."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import permutations
from typing import Any

import pytest

from robomimic_ddp.monitoring.metrics import Recorder
from robomimic_ddp.monitoring.nan_guard import Guard
from robomimic_ddp.monitoring.step_hooks import ORDER, StepHook, installed


class Model:
    def process_batch_for_training(self, batch: list) -> list:
        return [*batch, "host"]

    def log_info(self, info: list) -> list:
        return [*info, "host"]


class Hook(StepHook):
    def __init__(self, place: str, seen: list) -> None:
        self.place, self.seen = place, seen

    def batch(self, batch: Any) -> None:
        self.seen.append(("batch", self.place))

    def done(self) -> None:
        self.seen.append(("done", self.place))

    def step(self, step_log: list, batch: list) -> list:
        return [*step_log, self.place]

    def after_step(self) -> None:
        self.seen.append(("after", self.place))


def test_the_batch_of_an_epoch_is_let_go():
    model, batches = Model(), []

    class Last(Hook):
        def step(self, step_log: list, batch: Any) -> list:
            batches.append(batch)
            return step_log

    with installed(model, [Hook("verify", [])]):
        with installed(model, [Last("epoch log", [])]):
            model.process_batch_for_training([1])
            model.log_info([])
        with installed(model, [Last("epoch log", [])]):
            model.log_info([])
    assert batches == [[1], None]


@pytest.mark.parametrize("places", list(permutations(ORDER[2:5])))
def test_the_order_is_the_one_that_is_written_down(places):
    model, seen = Model(), []
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(installed(model, [Hook(place, seen)]))
        methods = {"log_info": lambda host, info: [*host(info), "stand-in"]}
        stack.enter_context(installed(model, methods=methods))
        assert model.process_batch_for_training([]) == ["host"]
        assert model.log_info([]) == ["host", "stand-in", *ORDER[2:5]]
    assert seen == [(what, place) for what in ("batch", "done", "after") for place in ORDER[2:5]]
    assert vars(model) == {}


def test_an_overflowed_loss_is_not_averaged_into_the_epochs_log():
    assert ORDER.index(Guard.place) < ORDER.index(Recorder.place)


def test_a_block_that_ends_late_leaves_nothing():
    """As `verify`'s, which a failed run closes after what training has changed."""
    model, seen = Model(), []
    first = installed(model, methods={"log_info": lambda host, info: host(info)})
    last = installed(model, [Hook("verify", seen)])
    for block in (first, last):
        block.__enter__()
    for block in (first, last):
        block.__exit__(None, None, None)
    assert vars(model) == {} and model.log_info([]) == ["host"] and seen == []
