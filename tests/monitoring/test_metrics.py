"""One rank: the host's `run_epoch` as it is; swapping undone in every case; counting samples."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.errors import RobomimicDDPError
from robomimic_ddp.monitoring import history
from robomimic_ddp.monitoring.step_logs import EpochPart, samples_in
from robomimic_ddp.training import epoch
from tests.ranks.hosts import epoch_log, started

SILENT = SimpleNamespace(log_info=lambda info: {})
"""A model that takes no steps."""


class Owner:
    on_class = "class"

    def method(self):
        return "method"


def test_swapped_puts_back_what_was_there():
    owner = Owner()
    owner.own = "own"
    with swapped(owner, "own", 1), swapped(owner, "on_class", 2), swapped(owner, "method", 3):
        assert (owner.own, owner.on_class, owner.method) == (1, 2, 3)
    assert vars(owner) == {"own": "own"}
    assert owner.on_class == "class" and owner.method() == "method"


def test_swapped_puts_back_after_an_exception_and_on_a_class():
    owner, before = Owner(), Owner.__dict__["method"]
    with pytest.raises(ValueError), swapped(owner, "method", None):
        raise ValueError
    assert owner.method() == "method"
    with swapped(Owner, "method", lambda self: "swapped"):
        assert owner.method() == "swapped"
    assert Owner.__dict__["method"] is before
    module = torch.nn.Linear(1, 1)
    with swapped(module, "forward", lambda x: "swapped"):
        assert module(torch.ones(1)) == "swapped"
    assert "forward" not in vars(module)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ({"obs": {"a": torch.zeros(3, 2)}, "actions": np.zeros((3, 4))}, 3),
        ({"index": ["a", "b"], "meta": {"none": None}, "obs": {"a": torch.zeros(5)}}, 5),
        ({"obs": {"a": torch.zeros(6, 2)}, "actions": torch.zeros(3, 4)}, 3),
        ([{"scalar": torch.zeros(())}, torch.zeros(2, 9)], 2),
    ],
)
def test_samples_are_counted_by_the_first_dimension(batch, samples):
    assert samples_in(batch) == samples


def test_a_batch_without_arrays_is_a_clear_error():
    with pytest.raises(RobomimicDDPError, match="no array with a batch dimension"):
        samples_in({"text": "a"})


def test_a_part_of_an_epoch_is_forgotten_when_the_next_begins():
    part = EpochPart()
    part.epoch, part.steps, part.total = 3, 4, 5
    part.see({"Loss": np.float32(2), "Norm": np.array([1.0, 2.0])}, None)
    assert part.step_logs == [{"Loss": 2.0, "Norm": 1.5}] and part.logs.samples == 0
    for value in (1.0, np.array([2.0, 4.0])):
        part.logs.see({"Loss": value}, {"actions": torch.zeros(3)})
    assert part.logs.samples == 6 and part.logs.totals == {"Loss": [3 * 1.0 + 3 * 3.0, 6]}
    part.begin()
    assert (part.epoch, part.steps, part.total, part.step_logs) == (None, 0, None, [])
    assert part.logs.samples == 0 and part.logs.totals == {}


@pytest.mark.parametrize("num_steps, total", [(5, None), (None, 5), (None, None)])
def test_the_rest_of_an_epoch_on_one_rank(num_steps, total):
    """Two of its steps are done; the loader has as many batches as the epoch has steps."""
    part, asked = EpochPart(), []
    part.steps, part.total = 2, total
    part.step_logs = [{"Loss": 1.0}, {"Loss": 3.0, "Odd": 7.0}]

    @partial(epoch_log, part=part)
    def run_epoch(model, data_loader, epoch, validate=False, num_steps=None):
        asked.append(num_steps)
        for _ in range(num_steps):
            model.process_batch_for_training({"actions": np.zeros(2)})
            model.log_info(None)
        return {"Loss": 5.0, "Time_Epoch": 0.5}, "kept"

    model = SimpleNamespace(
        process_batch_for_training=lambda batch: batch, log_info=lambda info: {"Loss": 5.0}
    )
    log, kept = run_epoch(model, range(5), 1, num_steps=num_steps)
    assert asked == [3] and kept == "kept"
    speed = {key: log.pop(key) for key in list(log) if key[:5] == "Time_" and key != "Time_Epoch"}
    assert speed and log == {"Loss": (1 + 3 + 5 * 3) / 5, "Odd": 7.0, "Time_Epoch": 0.5}
    assert part.steps == 0


class Loader(list):
    """As ours: `limited` gives this rank's share of the first steps."""

    def limited(self, num_steps):
        return self[:num_steps]


def test_a_host_validates_its_share_with_its_own_iterator():
    seen = []

    @epoch_log
    def run_epoch(model, data_loader, validate, num_steps, data_loader_iter=None):
        first = None if data_loader_iter is None else next(data_loader_iter)
        seen.append((list(data_loader), num_steps, first))
        return {}

    run_epoch(SILENT, Loader([1, 2, 3]), True, 2, iter([7]))
    run_epoch(SILENT, Loader([1, 2, 3]), True, None)
    run_epoch(SILENT, Loader([1, 2, 3]), False, 2, iter([7]))
    run_epoch(SILENT, [9], True, 2, iter([7]))
    assert seen == [([1, 2], 2, 1), ([1, 2, 3], 3, None), ([1, 2, 3], 2, 7), ([9], 2, 7)]


def test_a_host_validates_its_share_of_a_dict_of_loaders():
    seen = []

    @epoch_log
    def run_epoch(model, data_loader, validate, num_steps):
        seen.append((data_loader, num_steps))
        return {}

    loaders = {"data": Loader([1, 2, 3]), "more": Loader([7, 8])}
    run_epoch(SILENT, loaders, True, 1)
    run_epoch(SILENT, loaders, True, None)
    assert seen == [({"data": [1], "more": [7]}, 1), (loaders, 3)]


def test_an_epoch_that_is_a_pass_knows_its_steps_at_once():
    """For a stop inside of it; validation is no part of it."""
    part, totals = EpochPart(), []

    @partial(epoch_log, part=part)
    def run_epoch(model, data_loader, epoch, validate=False, num_steps=None):
        totals.append(part.total)
        return {}

    for arguments in ({}, {"num_steps": 3}, {"validate": True}):
        run_epoch(SILENT, range(5), 1, **arguments)
    run_epoch(SILENT, {"data": range(5)}, 1)
    assert totals == [5, None, None, 5]


def test_on_one_rank_the_hosts_function_gets_and_gives_the_same_objects():
    log, seen = {"Loss": np.float32(1)}, []

    def run_epoch(model, data_loader, epoch, validate=False, num_steps=None):
        """Host's."""
        seen.append((model, data_loader, epoch, validate, num_steps))
        return log

    logged, loader = epoch.epoch_log(run_epoch), [1]
    with started():
        assert logged(SILENT, data_loader=loader, epoch=3, validate=True) is log
    assert logged(None, loader, 4) is log, "outside a run"
    assert seen == [(SILENT, loader, 3, True, None), (None, loader, 4, False, None)]
    assert logged.__name__ == "run_epoch" and logged.__doc__ == "Host's."


@pytest.mark.parametrize(("num_steps", "total"), [(10, None), (None, 10)])
def test_history_of_an_epoch_that_was_gone_on_with(num_steps, total):
    """Six of its steps were another job's: their samples are not this one's speed."""
    part = EpochPart()
    part.steps, part.total = 6, total

    def run_epoch(model, data_loader, epoch, validate=False, num_steps=None):
        return {"Loss": 1.0}

    with started(part) as run:
        for number in (3, 4):
            epoch.epoch_log(run_epoch)(SILENT, range(7), number, num_steps=num_steps)
        first, second = history.read(run.directory)
        samples = run.plan.samples_per_step
    for record, steps, own in ((first, 10, 4), (second, num_steps or 7, num_steps or 7)):
        assert (record["steps"], record["samples"]) == (steps, steps * samples)
        speed = own * samples / record["seconds"]
        assert record["samples_per_second"] == pytest.approx(speed)
