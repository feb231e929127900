"""Train loaders of which the host joins batches: each gives its part of a step."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import TensorDataset

from robomimic_ddp import api
from robomimic_ddp.data.sampling import JoinedLoaders
from robomimic_ddp.data.sampling.nested_loaders import datasets_of
from robomimic_ddp.errors import DataError, OptionError
from robomimic_ddp.training import run
from robomimic_ddp.training.epoch_arguments import loader_of
from tests.plans import planned_run


@pytest.fixture
def present():
    """A run of train.batch_size=8 as rank 0 of 2, its options at their defaults."""
    with present_run() as current:
        yield current


@contextmanager
def present_run(**asked):
    current = planned_run(ranks=2, batch_size=8, **asked)
    with run.made_current(current):
        yield current


def make(batch_size: int):
    dataset = TensorDataset(torch.arange(64.0))
    return api.train_loader(dataset=dataset, batch_size=batch_size, shuffle=True)


def test_loaders_keep_their_parts_of_a_batch(present):
    """Three quarters and a quarter of each rank's samples, as of the host's."""
    sizes = [len(next(iter(make(batch_size)))[0]) for batch_size in (6, 2, 1)]
    assert sizes == [6, 2, 1]


def test_parts_of_a_batch_that_is_split_over_ranks():
    with present_run(batch="global"):
        assert [len(next(iter(make(batch_size)))[0]) for batch_size in (6, 2, 8)] == [3, 1, 4]
        with pytest.raises(DataError, match=r"of 5 samples .* 2\.50 samples"):
            make(5)


@pytest.mark.bad_input
def test_arguments_of_a_dataloader_are_refused_for_rlds_data():
    """Its loader is ours, where they have no effect."""
    message = "ddp.loader.prefetch_factor is for torch's DataLoader"
    with present_run(loader={"prefetch_factor": 4}), pytest.raises(OptionError, match=message):
        api.train_loader(dataset=SimpleNamespace(is_rlds=True), batch_size=8)


@pytest.mark.parametrize("sizes", [(4, 2, 2), (8, 8, 4)], ids=["parts", "whole batches"])
def test_each_loader_resumes_at_its_own_place(present, sizes):
    loaders = [make(batch_size) for batch_size in sizes]
    begun = [iter(loader) for loader in loaders]  # closed, they would end their passes
    for batches in begun:
        next(batches)
    saved = present.built.loaders["train"].position()
    expected = [next(batches)[0].tolist() for batches in begun]
    present.built.loaders.clear()
    resumed = [make(batch_size) for batch_size in sizes]
    said = present.built.loaders["train"].seek(saved, 2, epoch=1)
    assert [next(iter(loader))[0].tolist() for loader in resumed] == expected
    assert said.count("resumes after") == 3


class Positioned(list):
    """A loader that remembers what it was asked for."""

    def drop_iterator(self):
        self.dropped = True

    def position(self):
        return {"kind": "pass"}

    def seek(self, *asked):
        self.asked = asked
        return "data: resumes"


def test_joined_loaders_ask_each_for_its_place_and_behave_as_the_first():
    before, host, after = Positioned([1, 2, 3]), [4], Positioned([5])
    joined = JoinedLoaders(JoinedLoaders(before, host), after)
    assert joined.loader is before and len(joined) == 3
    joined.drop_iterator()
    assert before.dropped and after.dropped
    assert joined.position() == {"kind": "pass", "others": [None, {"kind": "pass"}]}
    starts_over = "data: the host's own pipeline starts over (its position cannot be restored)"
    position = {"kind": "pass"}  # saved when there was a single loader
    assert joined.seek(position, 2, 7) == f"data: resumes\n{starts_over}\ndata: resumes"
    assert before.asked == (position, 2, 7) and after.asked == (None, 2, 7)


def test_datasets_of_joined_loaders_and_of_mixtures():
    mixture = SimpleNamespace(dataset=SimpleNamespace(datasets=["one", "two"]))
    joined = SimpleNamespace(loaders=[mixture, SimpleNamespace(dataset="three"), ["no dataset"]])
    assert datasets_of(joined) == ["one", "two", "three"]


def test_an_epoch_over_several_loaders_is_a_pass_of_the_first():
    assert loader_of({"data_loaders": ["one", "two"]}) == "one"
    assert loader_of({"data_loader": "one"}) == "one"
    assert loader_of({}) is None
