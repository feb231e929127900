"""What a step logs on several ranks: numbers of all ranks' samples, other values as they are."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from robomimic_ddp import api
from robomimic_ddp.distributed import group
from robomimic_ddp.monitoring.step_logs import EpochPart
from tests.faults.toy_run import ToyJob, train
from tests.ranks.hosts import started

MATRIX = np.array([[3, 1], [0, 4]])
OTHERS: dict[str, Any] = {
    "confusion_matrix": None,
    "matrix": MATRIX,
    "by_task": {"lift": 0.5},
    "note": "text",
    "flag": True,
}


@api.epoch_log
def keeps_the_last(model, data_loader, epoch, validate=False, num_steps=None):
    """A host that keeps of values that are not numbers the last."""
    logs = []
    for batch in data_loader:
        model.process_batch_for_training(batch)
        logs.append(model.log_info(model.train_on_batch(batch)))
    return {**logs[-1], "Loss": float(np.mean([log["Loss"] for log in logs]))}


class Logs:
    def train_on_batch(self, batch):
        return {"Loss": float(batch["actions"].mean())}

    def process_batch_for_training(self, batch):
        return batch

    def log_info(self, info):
        return {**info, **copy.deepcopy(OTHERS), "rank": f"of {group.rank()}"}


def log_of_an_epoch(resumed: bool = False) -> dict:
    part = EpochPart()
    if resumed:
        part.steps, part.total, part.step_logs = 1, 4, [{"Loss": 5.0, "matrix": 2.0}]
    batches = [{"actions": torch.full((2, 1), float(group.rank() + index))} for index in range(3)]
    with started(part):
        return keeps_the_last(Logs(), batches, 1)


@pytest.mark.parametrize("world_size", [1, 2])
def test_values_that_are_not_numbers_are_the_main_ranks(world_size, ranks):
    for log in ranks.run(log_of_an_epoch, world_size=world_size):
        assert log["Loss"] == pytest.approx(1.0 if world_size == 1 else 1.5)
        assert log["rank"] == "of 0"
        np.testing.assert_array_equal(log.pop("matrix"), MATRIX)
        assert {key: log[key] for key in OTHERS if key != "matrix"} == {
            key: value for key, value in OTHERS.items() if key != "matrix"
        }


def test_a_resumed_epoch_keeps_them_too(ranks):
    (log,) = ranks.run(log_of_an_epoch, True, world_size=1)
    assert log["Loss"] == pytest.approx((5 + 0 + 1 + 2) / 4)
    np.testing.assert_array_equal(log["matrix"], MATRIX)


def weighed(job: Any) -> None:
    """As TD3-BC: a loss divided by a mean over the batch, logged in steps that do not train it."""
    train_on_batch, job.values = job.algo.train_on_batch, []

    def with_actor(batch: dict) -> dict:
        info = train_on_batch(batch)
        with torch.no_grad():
            values = batch["obs"].double()
            info["Actor"] = (values.mean() / api.over_ranks(values.abs().mean())).item()
        job.values.append(values)
        return info

    job.algo.train_on_batch = with_actor


def log_of_training() -> tuple:
    """Collective: the log of a train epoch, and its batches on this rank."""

    def another_epoch(job: Any) -> None:
        job.values.clear()
        job.log = keeps_the_last(job.algo, job.loader, 1)

    job = ToyJob({"construction": weighed, "epoch ends": another_epoch})
    train(job)
    return job.log["Actor"], job.values


def test_a_loss_without_gradients_is_weighed_with_all_ranks(ranks):
    (log, first), (other, second) = ranks.run(log_of_training)
    whole = [torch.cat(pair) for pair in zip(first, second)]
    expected = np.mean([float(values.mean() / values.abs().mean()) for values in whole])
    assert log == other == pytest.approx(expected, rel=1e-9)
