"""A number that is read later is the number as it was, in whatever way it is used."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch

from robomimic_ddp import late
from robomimic_ddp.step.accumulation import Infos, _mean


def counted(value, reads):
    return late.Number(lambda: reads.append(1) or value)


@pytest.mark.parametrize(
    "use",
    [
        float,
        str,
        bool,
        abs,
        round,
        lambda number: f"{number:.3f}",
        lambda number: 2 * number + number - 1 / number,
        lambda number: (number * 0.5, 0.5 - number, number / 0.5, number == 2.0, number != 2.0),
        lambda number: np.array([1.0, 2.0]).mean() + number,
        lambda number: (number < 3, number >= 2.5, number == 2.5, hash(number)),
        lambda number: divmod(number, 2) + (number**2, -number, number % 2),
        lambda number: float(np.mean([number, 1.0])),
        lambda number: json.dumps({"Loss": float(number)}),
    ],
)
@pytest.mark.parametrize("value", [2.5, 2])
def test_every_use_of_a_number_reads_it_once(use, value):
    reads = []
    number = counted(value, reads)
    assert not reads
    assert use(number) == use(value) and use(number) == use(value)
    assert reads == [1] and late.plain(number) == value


def test_two_numbers_and_what_is_none():
    assert counted(2.5, []) + counted(1, []) == 3.5
    assert late.plain("text") == "text" and type(late.plain(counted(3, []))) is int


def test_a_number_is_the_tensors_present_value():
    tensor = torch.tensor([1.5], requires_grad=True)
    number = late.number(tensor)
    with torch.no_grad():
        tensor.fill_(7)
    assert float(number) == 1.5


def test_tensors_of_a_nest_read_late_and_nothing_else_changes():
    loss = torch.tensor(0.25, requires_grad=True)
    info = Infos([{"losses": {"loss": loss}, "text": "a", "pair": (torch.ones(2), 3)}])
    info.weights = [1.0]
    made = late.reading_late(info)
    assert made.weights == [1.0] and type(made) is Infos and made is not info
    assert type(info[0]["losses"]["loss"]) is torch.Tensor, "the host's own nest is left alone"
    read = made[0]["losses"]["loss"].item(), (made[0]["pair"][0] * 3).mean().item()
    assert all(type(one) is late.Number for one in read) and read == (0.25, 3.0)
    assert (made[0]["text"], made[0]["pair"][1]) == ("a", 3)
    assert float(made[0]["losses"]["loss"]) == 0.25


@pytest.mark.parametrize(
    "look",
    [
        dict,
        list,
        len,
        bool,
        repr,
        copy.copy,
        lambda log: log["Loss"],
        lambda log: log.get("Loss"),
        lambda log: {**log},
        lambda log: "Loss" in log,
        lambda log: log == {},
        lambda log: {}.update(log),
        lambda log: log | {},
        lambda log: {} | log,
        lambda log: list(reversed(log)),
        lambda log: json.dumps(log),
    ],
)
def test_whoever_looks_at_a_log_waits_for_it(look):
    log, settled = late.Log(Loss=1.0), []
    log.settle = lambda: settled.append(1)
    look(log)
    look(log)
    assert settled == [1]


def test_means_over_micro_batches_are_read_late_too():
    reads = []
    mean = _mean([counted(1.0, reads), counted(4.0, reads)], [0.25, 0.75])
    assert not reads and late.plain(mean) == 0.25 + 3.0
    assert _mean([1.0, 4.0], [0.25, 0.75]) == 3.25 and _mean(["a", "b"], [0.5, 0.5]) == "b"
    assert _mean([counted(1e-4, reads)] * 2, [0.5, 0.5]) == 1e-4
