"""A mixture's loader over stand-ins for its datasets: which of them fills which batch."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from robomimic_ddp.data.rlds.loaders.mixture import MixtureTrainLoader
from robomimic_ddp.data.rlds.order.mixture_quota import Quotas

WEIGHTS, FIRST, SIZE = [0.7, 0.2, 0.1], [0, 1_000, 2_000], 100


class Member:
    """One dataset's loader: its windows in their own order, as many as are asked for."""

    def __init__(self, name):
        self.dataset = SimpleNamespace(source=SimpleNamespace(name=name))
        self.taken, self.followed = 0, None

    def follow(self, quotas, number):
        self.followed = (quotas, number)

    def next_of(self, count):
        # The real one is given the sizes of its batches, and prefetches batches of these sizes.
        quotas, number = self.followed
        assert count in [int(quotas.of(batch)[number]) for batch in range(400)]
        self.taken += count
        return {"index": torch.arange(self.taken - count, self.taken)}

    def position(self):
        return {"taken": self.taken}

    def go_to(self, position, world_size, epoch):
        self.taken = 0 if position is None else position["taken"]
        return "data: resumed"


class Mixture:
    weights, first_index = WEIGHTS, FIRST

    def __len__(self):
        return SIZE


def loader(batch_size=4, world_size=2):
    return MixtureTrainLoader(Mixture(), batch_size, 0, world_size, list(map(Member, "abc")))


def batches(made, count):
    found = []
    while len(found) < count:
        for batch in made:
            found.append(batch["index"].tolist())
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("taken", [1, 7, 12, 30])
def test_as_many_ranks_resume_with_the_shares_of_the_next_batch(taken):
    whole = loader()
    batches(whole, taken)
    resumed = loader()
    position = json.loads(json.dumps(whole.position()))
    assert position["batches"] == taken and sum(position["given"]) == taken * 4
    said = resumed.go_to(position, 2, 1)
    assert said.split("\n")[0] == "data: a: resumed"
    assert resumed.batches_left() == len(whole) - taken % len(whole)
    assert batches(resumed, 40) == batches(whole, 40)
    assert resumed.position() == whole.position()


def test_other_ranks_begin_to_share_out_and_have_what_is_left_of_the_pass():
    whole = loader()
    batches(whole, 7)  # 56 of 100 windows, by two ranks
    resumed = loader(batch_size=3, world_size=3)
    resumed.go_to(whole.position(), 2, 1)
    assert resumed.batches_left() == 11 - 6 == len(list(resumed))
    shares = Quotas(WEIGHTS, 3)
    again = loader(batch_size=3, world_size=3)
    again.go_to(whole.position(), 2, 1)
    for number, batch in enumerate(batches(again, 20)):
        found = [sum(first <= index < first + 1_000 for index in batch) for first in FIRST]
        assert found == shares.of(number).tolist()


def test_a_position_of_another_kind_begins():
    made = loader()
    assert "first pass" in made.go_to({"kind": "pass", "pass": 3, "samples": 8}, 2, 1)
    assert made.batches_left() == len(made) == 12
