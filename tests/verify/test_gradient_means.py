"""How far an averaged gradient may be from the mean of the ranks' own; two equal ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from robomimic_ddp.verify import gradient_means


def compared(comm, gradient, averaged):
    """Collective: the result for four elements of `gradient`, after a pass with a right average.
    Other parameters of the optimizer have no gradient, one of zeros and one of no elements.
    """
    alone, zeros, empty, weight = (nn.Parameter(torch.ones(size)) for size in (3, 2, 0, 4))
    optimizer = torch.optim.SGD([alone, zeros, empty, weight], lr=0.1)
    algo = SimpleNamespace(nets=nn.ModuleDict(), optimizers={"alpha": optimizer})
    means = gradient_means.watch(algo, optimizer, comm)
    for factor in (1.0, averaged / gradient):
        optimizer.zero_grad()
        loss = (gradient * weight).sum() + 0 * zeros.sum() + empty.sum()
        weight.register_hook(lambda local, factor=factor: local * factor)
        loss.backward()
    why_not, complaints = means.compare()
    means.stop()
    return why_not, [text.partition(", is not")[0] for text in complaints]


@pytest.mark.parametrize(
    "comm, gradient, averaged, is_mean",
    [
        ("none", 1e4, 1e4 + 0.09, True),
        ("none", 1e4, 1e4 + 0.11, False),
        ("bf16", 1.0, 1.026, True),
        ("bf16", 1.0, 1.027, False),
        ("fp16", 1e-7, 0.0, True),  # below the smallest number of fp16
        ("fp16", 2e-7, 0.0, False),
    ],
)
def test_what_rounding_may_change(comm, gradient, averaged, is_mean, ranks):
    complaint = "the gradient of optimizer alpha[3], reduced by DDP"
    result = (None, [] if is_mean else [complaint])
    assert ranks.run(compared, comm, gradient, averaged) == [result] * 2


def test_an_optimizer_of_frozen_parameters_proves_nothing():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2), requires_grad=False)], lr=0.1)
    algo = SimpleNamespace(nets=nn.ModuleDict(), optimizers={"alpha": optimizer})
    means = gradient_means.watch(algo, optimizer, "none")
    assert means.compare() == ("mean not proven: all zero", [])
