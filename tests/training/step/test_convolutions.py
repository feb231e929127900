"""Convolutions as matrix products: results and gradients of nn.Conv1d, for every shape it takes.

Tolerance 1e-5 of the largest number: sums of up to some hundred terms in another order.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from robomimic_ddp.training.step import convolutions


@pytest.fixture(autouse=True, scope="module")
def every_size():
    """Small ones too, so that tests are quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolutions, "LEAST_WEIGHTS", 0)
        patch.setattr(convolutions, "WEIGHTS_PER_ROW", 0)
        yield


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max() + 1)


def results(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Output, and the gradients of input and parameters."""
    net.zero_grad()
    x = x.clone().requires_grad_()
    out = net(x)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), x.grad, *(one.grad.clone() for one in net.parameters())]


@given(
    batch=st.integers(1, 4),
    channels=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    width=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    length=st.integers(5, 9),
    bias=st.booleans(),
)
def test_as_torch_does_it(batch, channels, width, stride, padding, length, bias):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(*channels, width, stride=stride, padding=padding, bias=bias), nn.Mish()
    )
    x = torch.randn(batch, channels[0], length)
    expected = results(net, x)
    with ExitStack() as undo:
        assert convolutions.install([net], undo)
        assert all(map(close, results(net, x), expected))
        copied = copy.deepcopy(net)
        with torch.no_grad():
            copied[0].weight.zero_()
        assert not torch.equal(copied(x), net(x)) or not net[0].weight.any()
    assert type(net[0]) is nn.Conv1d
    assert all(map(torch.equal, results(net, x), expected))


@pytest.mark.parametrize(
    "options", [{"groups": 2}, {"dilation": 2}, {"padding": "same"}, {"padding_mode": "circular"}]
)
def test_others_are_left_alone(options):
    net = nn.Conv1d(4, 4, 3, **options)
    with ExitStack() as undo:
        assert not convolutions.install([net], undo)
        assert type(net) is nn.Conv1d


def test_the_product_runs_where_it_gains(monkeypatch):
    net = nn.Conv1d(4, 4, 3)
    with ExitStack() as undo:
        convolutions.install([net], undo)
        monkeypatch.setattr(convolutions, "WEIGHTS_PER_ROW", 4)
        calls = []
        plain = nn.Conv1d.forward
        monkeypatch.setattr(
            nn.Conv1d, "forward", lambda self, x: (calls.append(x), plain(self, x))[1]
        )
        net(torch.ones(2, 4, 8))  # 12 steps, 48 weights
        assert not calls
        net(torch.ones(3, 4, 8))
        assert len(calls) == 1
