"""Whose buffers DDP keeps equal."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.distributed.gradients.parallel import buffers_may_change


def hosts_softmax(**more):
    from robomimic.models.base_nets import SpatialSoftmax

    return SpatialSoftmax(input_shape=(4, 3, 3), num_kp=2, **more)


def softmax_that_counts():
    class Counting(type(hosts_softmax())):
        def __init__(self):
            super().__init__(input_shape=(4, 3, 3), num_kp=2)
            self.register_buffer("seen", torch.zeros(()))

    made = Counting()
    made.__class__.__name__ = "SpatialSoftmax"
    made.__class__.__module__ = "fork.models.base_nets"
    return made


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (lambda: nn.Linear(2, 2), False),
        (hosts_softmax, False),
        (lambda: hosts_softmax(temperature=0.5, noise_std=0.1), False),
        (softmax_that_counts, True),
        (lambda: nn.BatchNorm2d(3), True),
        (lambda: nn.BatchNorm2d(3, track_running_stats=False), False),
        (lambda: nn.GroupNorm(1, 3), False),
        (lambda: nn.utils.spectral_norm(nn.Linear(2, 2)), True),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)), True),
    ],
)
def test_what_may_write_to_its_buffers(make, changes):
    net = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([make()]))
    assert buffers_may_change(net) is changes


@pytest.mark.parametrize(
    ("chosen", "with_norm", "without"),
    [(None, True, False), (True, True, True), (False, False, False)],
)
def test_ddp_copies_buffers_where_it_must(chosen, with_norm, without):
    kwargs = {} if chosen is None else {parallel.BUFFERS[0]: chosen}

    def copies(net):
        options = parallel.ddp_options(Options(kwargs=kwargs), net)
        assert options["gradient_as_bucket_view"] is True
        return options[parallel.BUFFERS[0]]

    assert copies(nn.BatchNorm1d(3)) is with_norm
    assert copies(nn.Sequential(hosts_softmax())) is without
