"""The gradients' norm is read when everything of a step is launched."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

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

    def host(info: dict, prefix: str) -> OrderedDict:
        return OrderedDict(Loss=1.5, **{f"{prefix}Norms": info["policy_grad_norms"]})

    log = backprop.logged(host, info, "Grad_")
    assert log == OrderedDict(Loss=1.5, Grad_Norms=3.0) and type(log["Grad_Norms"]) is float
