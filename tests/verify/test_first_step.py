"""What of a first step is compared between ranks: its random numbers and its samples."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils.data import ConcatDataset, Subset

from robomimic_ddp.verify import checksum, digest
from robomimic_ddp.verify.data_fingerprint import FirstBatch, TrainedBatches
from robomimic_ddp.verify.drawn_numbers import DrawnNumbers
from robomimic_ddp.verify.rng_state import Streams


class Scheduler:
    def add_noise(self, samples, noise, timesteps, scale=1):
        return samples + noise * timesteps * scale


def drawn(step, is_compiled=False):
    """The draws of `step(algo)`."""
    algo, watched = SimpleNamespace(noise_scheduler=Scheduler()), DrawnNumbers()
    assert watched.is_done is False
    watched.begin(algo, is_compiled)
    step(algo)
    watched.end()
    torch.randn(16)
    assert watched.is_done is True
    assert vars(algo.noise_scheduler) == {} and _get_current_function_mode_stack() == []
    return watched.draws


def adds(noise):
    """Return a step that adds `noise`."""

    def step(algo):
        noisy = algo.noise_scheduler.add_noise(1, noise, 2, scale=3)
        assert torch.equal(noisy, 1 + 6 * noise)

    return step


NOISE = "the noise of noise_scheduler.add_noise"


@pytest.mark.parametrize(
    "step, name",
    [
        (lambda _: torch.rand(16), "rand"),
        (lambda _: torch.randn(16), "randn"),
        (lambda _: torch.randint(0, 100, (16,)), "randint"),
        (lambda _: torch.rand_like(torch.zeros(16)), "rand_like"),
        (lambda _: torch.randn_like(torch.zeros(16)), "randn_like"),
        (lambda _: torch.randint_like(torch.zeros(16), 100), "randint_like"),
        (lambda _: torch.normal(torch.zeros(16), 1.0), "normal"),
        (lambda _: torch.bernoulli(torch.full((99,), 0.5)), "bernoulli"),
        (lambda _: torch.multinomial(torch.ones(99), 16), "multinomial"),
        (lambda _: torch.distributions.Normal(0.0, 1.0).rsample((16,)), "normal_"),
        (lambda _: torch.zeros(16).uniform_(), "uniform_"),
        (lambda _: torch.zeros(16).random_(), "random_"),
        (lambda _: torch.zeros(16).exponential_(), "exponential_"),
        (lambda _: torch.zeros(99).bernoulli_(), "bernoulli_"),
        (adds(torch.arange(16.0)), None),
    ],
)
def test_numbers_that_tell_ranks_apart(step, name):
    torch.manual_seed(0)
    (draw,) = drawn(step)
    kind = NOISE if name is None else f"what torch's {name} draws"
    assert draw.what == f"{kind} (1. in the first step)"
    assert "Ranks must draw different noise" in draw.cause


OUTLIERS = torch.zeros(10_001)
OUTLIERS[[*range(10), -1]] = torch.arange(1.0, 12.0)


@pytest.mark.parametrize(
    "numbers, are_noted",
    [
        (torch.arange(10), True),
        (torch.arange(9), False),
        (torch.tensor([0] * 8 + [1, 2, 3, 4] * 2), True),  # 30.5 bits
        (torch.tensor([0] * 8 + [1, 1, 1, 2, 2, 2, 3, 4]), False),  # 29.1 bits
        (OUTLIERS, False),  # its first 10 000 have 29 bits
        (torch.zeros(64), False),
        (torch.zeros(1), False),
        (torch.zeros(0), False),
    ],
)
def test_numbers_that_could_agree_by_chance_are_not_compared(numbers, are_noted):
    values = [((len(numbers),), *checksum(numbers))] if are_noted else []
    assert [draw.value for draw in drawn(adds(numbers))] == values
    assert drawn(lambda _: numbers + 1) == []


def test_the_first_draws_are_numbered_and_compared():
    draws = drawn(lambda _: [torch.randn(16) for _ in range(40)])
    names = [f"what torch's randn draws ({number}. in the first step)" for number in range(1, 33)]
    assert [draw.what for draw in draws] == names


def test_beside_compiled_code_only_the_schedulers_noise_is_seen():
    assert drawn(lambda _: torch.randn(16), is_compiled=True) == []
    assert len(drawn(adds(torch.arange(16.0)), is_compiled=True)) == 1


def test_random_states_that_ranks_must_not_share(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: "of a GPU")
    before = Streams.now()
    np.random.rand()
    items = Streams.now().different()
    states = torch.get_rng_state(), "of a GPU", np.random.get_state(), random.getstate()
    assert [item.value for item in items] == [digest(state) for state in states]
    names = ["torch's random state (CPU)", "torch's random state (GPU)"]
    names += ["numpy's random state", "Python's random state"]
    assert [item.what for item in items] == names
    for item, package in zip(items, ("torch with", "torch with", "numpy on", "random on")):
        assert f"Something re-seeds {package} " in item.cause
    items[3] = items[3]._replace(value=None)  # nothing was drawn from it
    assert Streams.now().different(since=before) == items


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
