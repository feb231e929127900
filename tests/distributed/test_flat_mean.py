"""One message averages an optimizer's gradients without reading from the device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robomimic_ddp.distributed.gradients.flat_mean import FlatMean


def test_only_an_absent_gradient_is_looked_for_on_other_ranks():
    """Tensors of the meta device have no numbers: reading one is an error."""
    net = nn.Linear(2, 3, device="meta")
    net(torch.empty(4, 2, device="meta")).sum().backward()
    mean = FlatMean([*net.parameters()])
    mean.average()
    assert net.weight.grad.shape == (3, 2) and net.weight.grad.device.type == "meta"
    net.bias.grad = None
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        mean.average()


def test_gradients_have_the_order_in_memory_of_their_parameters():
    """torch's fused optimizers go through memory, and do not look at strides."""
    net = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    net(torch.randn(4, 3, 8, 8)).square().sum().backward()
    before = net.weight.grad.clone()
    FlatMean([*net.parameters()]).average()
    assert net.weight.grad.stride() == net.weight.stride() != nn.Conv2d(3, 8, 3).weight.stride()
    torch.testing.assert_close(net.weight.grad, before)
