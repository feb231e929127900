"""Numbers read a step later (as on a GPU, forced here): the same logs, the same alarms."""

from __future__ import annotations

import math
import os
import signal
import weakref
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from robomimic_ddp import api, late, observing, run
from robomimic_ddp.errors import LossError, Stopped
from robomimic_ddp.metrics import epoch_log
from robomimic_ddp.state import plain
from robomimic_ddp.step_logs import EpochPart
from robomimic_ddp.swapping import swapped
from tests.faults import toy_run
from tests.faults.test_planted_faults import ENVIRONMENT
from tests.ranks.pool import RankError
from tests.ranks.test_epoch_part import STEPS, Stop, batches
from tests.ranks.test_metrics import Algo, real_run_epoch

LOGGED = {"Loss", "Norm", "Largest", "Rate"}


class LateAlgo(toy_run.ToyAlgo):
    """Logs tensors, the learning rate of the moment, and a norm in which nobody calls `item`."""

    def train_on_batch(self, batch):
        with swapped(torch.Tensor, "item", lambda tensor: tensor):
            info = super().train_on_batch(batch)
        norm = sum(one.grad.square().sum() for one in self.nets.parameters())
        late_norm = run.current().steps.reads_late
        norm = late.number(norm) if late_norm else norm.item()
        return {"losses": {"loss": info["Loss"].detach(), "all": batch["actions"]}, "norm": norm}

    def log_info(self, info):
        return {
            "Rate": self.optimizers["policy"].param_groups[0]["lr"],
            "Loss": info["losses"]["loss"].item(),
            "Norm": info["norm"],
            "Largest": info["losses"]["all"].max().item(),
        }


def outstanding(log):
    """The numbers of a log that nobody has read."""
    return [key for key, value in dict.items(log) if isinstance(value, late.Number)]


@api.epoch_log
def run_epoch(model, data_loader, epoch, validate=False, num_steps=0):
    """The host's loop, which notes after each step what waits to be read."""
    job, logs, seen, found = model.job, [], [], iter(data_loader)
    for job.step_number in range(num_steps):
        batch = model.process_batch_for_training(job.change_batch(next(found)))
        seen.append(weakref.ref(batch["obs"]))
        info = model.train_on_batch(batch)
        model.on_gradient_step()
        logs.append(model.log_info(info))
        del batch, info
        job.waiting.append([number for number, log in enumerate(logs) if outstanding(log)])
        job.batches.append(sum(one() is not None for one in seen))
    job.logs = [dict(log) for log in logs]
    return {key: float(np.mean([log[key] for log in logs])) for key in logs[0]}


def train(is_late, plants=None, **options):
    """Collective: the job after an epoch whose numbers are read late, or at once."""
    job = toy_run.ToyJob({"config": lambda job: job.options.update(options), **(plants or {})})
    job.waiting, job.batches, job.epoch_logs = [], [], []

    def noting(*args, **kwargs):
        job.epoch_logs.append(run_epoch(*args, **kwargs))

    with ExitStack() as stack:
        stack.enter_context(swapped(late, "pays", lambda device: is_late))
        stack.enter_context(swapped(toy_run, "ToyAlgo", LateAlgo))
        stack.enter_context(swapped(toy_run, "run_epoch", noting))
        try:
            toy_run.train(job)
        except Stopped:
            job.stopped = True
    return job


def trained(is_late, options):
    job = train(is_late, **options)
    return job.logs, job.epoch_logs[0], job.waiting, job.batches


@pytest.mark.parametrize("world_size", [1, 2])
def test_logs_are_those_that_are_read_at_once(world_size, ranks):
    call = {"world_size": world_size, "environment": ENVIRONMENT}
    at_once = ranks.run(trained, False, {}, **call)
    later = ranks.run(trained, True, {}, **call)
    for one, other in zip(at_once, later):
        assert one[0] == other[0] and all(set(log) == LOGGED for log in other[0])
        assert {type(value) for log in other[0] for value in log.values()} == {float}
        mean, late_mean = ({key: log[key] for key in LOGGED} for log in (one[1], other[1]))
        assert mean == late_mean
        assert one[2] == [[]] * toy_run.STEPS
        assert other[2] == [[number] for number in range(toy_run.STEPS)], "one step behind, not two"
        assert max(other[3]) <= 2, "a step's batch and the next one's"
    assert len({log["Rate"] for log in later[0][0]}) == toy_run.STEPS, "each has its own step's"


def test_safe_reads_at_once(ranks):
    [(_, _, waiting, _)] = ranks.run(
        trained, True, {"preset": "safe"}, world_size=1, environment=ENVIRONMENT
    )
    assert waiting == [[]] * toy_run.STEPS


def break_the_loss(number):
    """Plants a loss that is NaN in step `number`, counted from 1."""

    def plant(job):
        loss = job.algo.loss
        if job.step_number == number - 1:
            job.loss = lambda batch: loss(batch) * math.nan

    return plant


def reached_the_end(job):
    raise AssertionError("a checkpoint is written here")


def alarm(number, is_late):
    """What a run says whose loss breaks in step `number`."""
    with pytest.raises(LossError) as caught:
        train(is_late, {"step": break_the_loss(number), "epoch ends": reached_the_end})
    return str(caught.value)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("number", [2, toy_run.STEPS])
def test_a_loss_that_is_nan_ends_the_run_and_names_its_step(number, is_late, ranks):
    for rank, text in enumerate(ranks.run(alarm, number, is_late, environment=ENVIRONMENT)):
        assert f"rank {rank} of 2, epoch 1: the loss is nan at step {number}, though" in text


def stop_in_step(number, is_broken):
    """A signal comes in step `number`, whose loss may be NaN; the steps whose logs are kept."""

    def plant(job):
        if job.step_number == number - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
            if is_broken:
                break_the_loss(number)(job)
        job.part = run.current().part

    job = train(True, {"step": plant})
    assert job.stopped
    return len(job.part.step_logs), job.part.steps


def test_a_stop_inside_an_epoch_waits_for_the_last_steps_numbers(ranks):
    call = {"world_size": 1, "environment": ENVIRONMENT}
    assert ranks.run(stop_in_step, 2, False, **call) == [(2, 2)]
    with pytest.raises(RankError) as caught:
        ranks.run(stop_in_step, 2, True, **call)
    assert "the loss is nan at step 2" in caught.value.by_rank[0], "before anything is saved"


def part_after(stop_after, is_late):
    """What a stop after so many steps would save of the epoch, with the real host's loop."""

    def after_step():
        if part.steps == stop_after:
            part.settle()
            raise Stop

    part, model = EpochPart(after_step), Algo()
    arguments = {"data_loader": batches(), "epoch": 1, "num_steps": STEPS}
    with pytest.raises(Stop), observing.watching(model, [], is_late):
        epoch_log(real_run_epoch(), lambda: part)(model=model, **arguments)
    return plain([part.steps, part.logs.samples, part.logs.totals, part.step_logs])


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_a_stop_saves_is_the_same(world_size, ranks):
    for stop_after in (1, 3):
        at_once = ranks.run(part_after, stop_after, False, world_size=world_size)
        assert ranks.run(part_after, stop_after, True, world_size=world_size) == at_once
