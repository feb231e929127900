"""One rank: the host's `run_epoch` as it is, its share of validation, its history."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robomimic_ddp.errors import RobomimicDDPError
from robomimic_ddp.monitoring.metrics import of_all_steps
from robomimic_ddp.monitoring.records import history
from robomimic_ddp.monitoring.step_logs import EpochPart, numbers_of, samples_in
from robomimic_ddp.training import epoch
from tests.ranks.hosts import epoch_log, started

SILENT = SimpleNamespace(log_info=lambda info: {})
"""A model that takes no steps."""


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


def part_of(*step_logs):
    part = EpochPart()
    part.step_logs += step_logs
    return part


def test_a_log_of_one_rank_is_the_hosts_unless_steps_were_taken_before():
    log = {"Loss": torch.tensor(9.0), "Flag": True, "Text": "x", "Time_Epoch": np.float32(2.0)}
    steps = [{"Loss": 1.0, "Rare": 4.0, "Text": 5.0}, {"Loss": 3.0}]
    assert of_all_steps(log, part_of(*steps), False, 4) is log
    assert of_all_steps(log, part_of(*steps), True, 4) == {**log, "Loss": 2.0, "Rare": 4.0}
    part = part_of(*steps)
    part.logs.add(12, {"Loss": (60.0, 12)})  # of several ranks, before the resume
    expected = {**log, "Loss": 76 / 20, "Rare": 4.0, "Time_Epoch": 2.0}
    of_all = of_all_steps(log, part, True, 4)
    assert of_all == expected and of_all["Flag"] is True
    assert part.logs.samples == 20


class Loader(list):
    """As ours: `limited` gives this rank's share of the first steps."""

    def limited(self, num_steps):
        return self[:num_steps]


def test_what_is_no_number_has_no_mean():
    log = {"loss": 2.0, "text": "a", "nothing": None, "ragged": [[1], [1, 2]], "two": [1, 2]}
    log["sparse"] = torch.eye(2).to_sparse()
    assert numbers_of(log) == {"loss": 2.0, "two": 1.5}
    tensor = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    assert numbers_of({"loss": 2 * tensor, "last": tensor[1]}) == {"loss": 2.0, "last": 1.0}


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
    part.steps, part.total, part.before = 6, total, (6, 60)

    def run_epoch(model, data_loader, epoch, validate=False, num_steps=None):
        return {"Loss": 1.0}

    with started(part) as run:
        for number in (3, 4):
            epoch.epoch_log(run_epoch)(SILENT, range(7), number, num_steps=num_steps)
        first, second = history.read(run.output.directory)
        samples = run.plan.samples_per_step
    for record, steps, own in ((first, 10, 4), (second, num_steps or 7, num_steps or 7)):
        before = 60 if record is first else 0
        assert (record["steps"], record["samples"]) == (steps, before + own * samples)
        speed = own * samples / record["seconds"]
        assert record["samples_per_second"] == pytest.approx(speed)


def test_a_log_that_json_cannot_have_does_not_end_the_training(tmp_path, capsys):
    history.try_to_append(tmp_path, {"epoch": 1, "phase": "train", "log": {("a", 1): 2.0}})
    assert "history.jsonl lacks an epoch's log: keys must be str" in capsys.readouterr().err
