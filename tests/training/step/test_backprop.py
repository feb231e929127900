"""The gradients' norm is read when everything of a step is launched."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from robomimic_ddp.errors import PlanError
from robomimic_ddp.training.step import backprop
from tests.versions import NEEDS_META_NORM


@NEEDS_META_NORM
def test_a_norm_on_a_device_is_not_read_by_the_step():
    """Tensors of the meta device have no numbers: reading one is an error."""
    net = nn.Linear(2, 2, device="meta")
    loss = net(torch.empty(3, 2, device="meta")).sum()
    norm = backprop.update(net, torch.optim.SGD(net.parameters(), 0.1), loss)
    assert norm.device.type == "meta" and norm.shape == ()


def test_it_is_a_number_in_the_steps_log():
    info = {"policy_grad_norms": torch.tensor(3.0)}

    def host(info: dict, prefix: str, name: str) -> OrderedDict:
        return OrderedDict(Loss=1.5, **{f"{prefix}{name}": info["policy_grad_norms"]})

    log = backprop.logged(host, info, "Grad_", name="Norms")
    assert log == OrderedDict(Loss=1.5, Grad_Norms=3.0) and type(log["Grad_Norms"]) is float


def test_a_step_drops_old_gradients_and_frees_its_graph_unless_that_is_retained():
    net, unused = nn.Linear(2, 1), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*net.parameters(), unused], lr=0.1)
    unused.grad = torch.ones(2)
    loss = net(torch.ones(3, 2)).square().sum()
    assert backprop.update(net, optimizer, loss, retain_graph=True) > 0
    assert unused.grad is None, "Adam would move it"
    backprop.update(net, optimizer, loss)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()


def test_a_net_without_gradients_has_the_norm_zero_as_the_hosts():
    trained, untrained = nn.Parameter(torch.ones(2)), nn.Linear(2, 2)
    norm = backprop.update(untrained, torch.optim.SGD([trained], lr=0.1), trained.sum())
    assert norm == 0.0 and torch.equal(trained.data, torch.full((2,), 0.9))


def call_of(kind, net, optim, loss, max_grad_norm=None, retain_graph=False, *, note=None):
    return kind, net, optim, loss, max_grad_norm, retain_graph, note


def test_a_call_reaches_the_hosts_function_or_ours_with_the_hosts_options():
    averaged, local = (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
    host = functools.partial(call_of, "host", max_grad_norm=0.5)
    backward = backprop.Backward(host, [averaged], functools.partial(call_of, "ours"))
    model = SimpleNamespace(nets=nn.ModuleDict({"policy": nn.Linear(1, 1)}))
    for optimizer, kind in ((averaged, "ours"), (local, "host")):
        with pytest.raises(PlanError, match="stepped its optimizer self.o outside of backprop_for"):
            backward.before_step(model, "self.o", "why", "fp32", in_parts=False)
        arguments = {"optim": optimizer, "loss": 1.0, "note": "a"}
        assert backward("net", **arguments) == (kind, "net", optimizer, 1.0, 0.5, False, "a")
    assert backward.calls == 2


def host_of_old(net, optim, loss):
    """Without the options that later hosts have."""


@pytest.mark.parametrize("retained", [True, False, None])
def test_gradients_of_parts_are_scaled_shares_and_the_last_is_averaged(retained, monkeypatch):
    mean = SimpleNamespace(average_in_backward=lambda loss: 100 * loss)
    monkeypatch.setattr(backprop.optimizer_ddp, "of", lambda optimizer: mean)
    weight = nn.Parameter(torch.ones(()))
    weight.grad = torch.ones(())  # of the step before
    losses = []
    scaler = SimpleNamespace(scale=lambda loss: 8 * loss)
    backward = backprop.Backward(
        host_of_old if retained is None else lambda net, optim, loss, retain_graph=False: None,
        [optimizer := torch.optim.SGD([weight], lr=0.1)],
        lambda net, optim, loss, retain_graph=False: losses.append(loss.item()),
        scaler,
    )
    options = {} if retained is None else {"retain_graph": retained}
    for part in (backprop.Part(0.25, last=False), backprop.Part(0.5, last=False)):
        backward.part, loss = part, weight.square()
        assert math.isnan(backward(None, optimizer, loss, **options))
        if not retained:
            with pytest.raises(RuntimeError, match="retain_graph=True"):
                torch.autograd.grad(loss, weight)
    assert weight.grad == 8 * 2 * 0.75
    backward.part = backprop.Part(0.25)
    backward(None, optimizer, weight.square(), **options)
    assert losses == [100 * 0.25] and (not retained or torch.autograd.grad(loss, weight) == (2,))
