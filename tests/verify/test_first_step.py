"""What of a first step is compared between ranks: its random numbers and its samples."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils.data import ConcatDataset, Subset

from robomimic_ddp.verify.data_fingerprint import FirstBatch, TrainedBatches
from robomimic_ddp.verify.drawn_numbers import DrawnNumbers


class Scheduler:
    def add_noise(self, samples, noise, timesteps):
        return samples + noise


def drawn(step, is_compiled=False):
    """The draws of `step(algo)`, by name."""
    algo, watched = SimpleNamespace(noise_scheduler=Scheduler()), DrawnNumbers()
    watched.begin(algo, is_compiled)
    step(algo)
    watched.end()
    torch.randn(16)
    assert vars(algo.noise_scheduler) == {} and _get_current_function_mode_stack() == []
    return {one.what.partition(" (")[0]: one.value for one in watched.draws}


def noise(algo):
    algo.noise_scheduler.add_noise(torch.zeros(16), torch.arange(16.0), 1)


@pytest.mark.parametrize(
    "step, names",
    [
        (lambda _: torch.randn(16), ["what torch's randn draws"]),
        (lambda _: torch.zeros(16).normal_(), ["what torch's normal_ draws"]),
        (lambda _: torch.distributions.Normal(0.0, 1.0).rsample((16,)), ["what torch's normal"]),
        (noise, ["the noise of noise_scheduler.add_noise"]),
        (lambda _: torch.randn(3), []),
        (lambda _: torch.randint(0, 1, (64,)), []),
        (lambda _: torch.randint(0, 100, (4,)), []),
        (lambda _: torch.zeros(16) + 1, []),
    ],
)
def test_numbers_that_tell_ranks_apart(step, names):
    found = drawn(step)
    assert len(found) == len(names)
    assert all(name in one for name, one in zip(names, found))


def test_beside_compiled_code_only_the_schedulers_noise_is_seen():
    assert drawn(lambda _: torch.randn(16), is_compiled=True) == {}
    assert len(drawn(noise, is_compiled=True)) == 1


def first(index, actions=None):
    seen = TrainedBatches()
    seen.see({"index": torch.tensor(index), **({} if actions is None else {"actions": actions})})
    return seen.first


SHARE = SimpleNamespace(share_of_pass=np.arange(100, 40, -1))


@pytest.mark.parametrize(
    "index, wrong",
    [
        ([100, 99, 98, 97], None),
        ([96, 95, 94, 93], None),  # the host has taken a batch before
        ([100, 99, 7, 97], "sample 2 of the first batch has index 7"),
        ([96, 95, 94, 94], "sample 3 of the first batch has index 94"),
        ([0, 1, 2, 3], None),  # numbers of something else
        ([100, 1, 2, 3], None),
        ([100, 99, 1, 2, 3], "sample 2 of the first batch has index 1"),
        ([100, 99, 1, 2, 3, 4], None),
        ([88, 87, 86, 7], "sample 3 of the first batch has index 7"),
        ([84, 83, 82, 7], None),  # a host takes fewer batches before
        ([99, 98, 97, 7], None),  # no batch begins there
        ([*range(100, 30, -1)], None),
        ([[100, 99, 7]], None),
        ([100], None),
    ],
)
def test_a_sample_that_the_loader_did_not_give(index, wrong):
    complaints = first(index).complaints(SHARE)
    assert len(complaints) == (wrong is not None)
    assert wrong is None or complaints[0].startswith(wrong)
    assert first(index).complaints(object()) == []
    assert FirstBatch(None, torch.zeros(4, 2)).complaints(SHARE) == []


class Rows(torch.utils.data.Dataset):
    """Samples with their index in this dataset, augmented."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"index": index, "shift": torch.rand(1) + np.random.rand()}


SHIFTED = [100, 97, 98, 95]
JOINED = ConcatDataset([Rows(98), Rows(9)])


@pytest.mark.parametrize(
    ("dataset", "share", "index", "is_wrong"),
    [
        (JOINED, SHIFTED, [2, 97, 0, 95], False),
        (Subset(Rows(200), [*range(98), 120, 121, 122]), SHIFTED, [122, 97, 120, 95], False),
        (JOINED, [2, 97, 98, 95], [2, 7, 0, 95], True),
        (Rows(101), SHIFTED, [100, 97, 7, 95], True),
        (object(), SHIFTED, [2, 97, 0, 95], True),
    ],
)
def test_a_dataset_that_numbers_samples_in_its_parts_raises_no_alarm(
    dataset, share, index, is_wrong
):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    loader = SimpleNamespace(share_of_pass=np.array(share), dataset=dataset)
    assert (first(index).complaints(loader) != []) == is_wrong
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_batches_that_could_agree_by_chance_are_not_compared():
    (same,), (again,) = (first(list(range(10))).different() for _ in range(2))
    assert same == again and same.value is not None
    assert same.what == "the first batch" and "another one replaced this rank's" in same.cause
    assert first([*range(1, 11)]).different()[0].value != same.value
    assert first(list(range(9))).different()[0].value is None
    assert FirstBatch(None, torch.zeros(16, 3)).different()[0].value is None
    rows = torch.randn(16, 3, requires_grad=True)
    (of_actions,) = FirstBatch(None, rows).different()
    assert of_actions.value is not None
    seen = TrainedBatches()
    seen.see({"actions": rows.detach().numpy()})
    assert seen.first.different() == [of_actions]
    assert FirstBatch(None, None).different()[0].value is None
