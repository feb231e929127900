"""A resumed run's gradients are summed as the uninterrupted run's, whatever the number of ranks."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from robomimic_ddp.checkpoint import restore_model, state_file
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.distributed.gradients import parallel
from tests.runs import captured


class Crossed(nn.Module):
    """Used in another order than defined, as the host's UNet is."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(23, 23) for _ in range(7))

    def forward(self, x):
        for index in (3, 6, 0, 5, 1, 4, 2):
            x = torch.tanh(self.parts[index](x))
        return x


def make(options):
    torch.manual_seed(0)
    net = Crossed()
    parallel.parallelise(net, "ddp", parallel.ddp_options(Options(kwargs=options), net), "net")
    nets = nn.ModuleDict({"net": net})
    adam = torch.optim.AdamW(nets.parameters(), lr=1e-2)
    parallel.state_of(net).build(net)
    return SimpleNamespace(nets=nets, optimizers={"net": adam}, lr_schedulers={})


def train(algo, steps):
    for _ in range(steps):
        algo.optimizers["net"].zero_grad()
        algo.nets["net"](torch.randn(5, 23)).pow(2).mean().backward()
        algo.optimizers["net"].step()


def whole_and_resumed(options, repeated):
    """Digests of the model after 6 steps, without and with a new process after the third."""
    algo = make(options)
    rng.seed_streams(0, group.rank())
    train(algo, 3)
    saved, random = copy.deepcopy(captured(algo)), torch.get_rng_state()
    parallel.state_of(algo.nets["net"]).note_order()
    order = parallel.state_of(algo.nets["net"]).gradient_order
    train(algo, 3)
    again = make(options)
    restore_model(again, saved)
    if repeated:
        parallel.state_of(again.nets["net"]).repeat_layout(order)
    torch.set_rng_state(random)
    train(again, 3)
    return state_file.digest(captured(algo)), state_file.digest(captured(again)), order


@pytest.mark.parametrize("bucket_mb", [25.0, 0.002])
def test_equal_to_the_bit(ranks, bucket_mb):
    reported = ranks.run(whole_and_resumed, {"bucket_cap_mb": bucket_mb}, True, world_size=3)
    assert len({digest for whole, resumed, _ in reported for digest in (whole, resumed)}) == 1
    assert sorted(reported[0][2]) == list(range(14))


def test_the_layout_matters(ranks):
    """Without it three ranks part in last bits: else the test above could not fail."""
    kwargs = {"bucket_cap_mb": 25.0}
    whole, resumed, order = ranks.run(whole_and_resumed, kwargs, False, world_size=3)[0]
    assert whole != resumed
    assert order != list(range(13, -1, -1)), "the net is used in its order of definition"


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_where_ddp_takes_no_order_none_is_kept(ranks, option):
    (_, _, order), _ = ranks.run(whole_and_resumed, {option: True}, True)
    assert order == []
