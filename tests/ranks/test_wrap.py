"""The wrapper on two gloo ranks: gradients are averaged, eval runs alone, a bypassed gradient is an
error.
"""

from __future__ import annotations

import pytest
import torch

from robomimic_ddp import verify
from robomimic_ddp.distributed import group, host_algo, rng
from tests.ranks.toy import loss_of, make_algo, step


def train(encoder_has_parameters):
    algo = make_algo(encoder_has_parameters=encoder_has_parameters)
    rng.seed_streams(0, group.rank())
    losses = [step(algo, torch.randn(8, 4)) for _ in range(3)]
    return losses, [verify.checksum(parameter) for parameter in algo.nets.parameters()]


@pytest.mark.parametrize("encoder_has_parameters", [True, False])
def test_parameters_stay_equal_while_losses_differ(ranks, encoder_has_parameters):
    (losses0, parameters0), (losses1, parameters1) = ranks.run(train, encoder_has_parameters)
    assert parameters0 == parameters1
    assert losses0 != losses1


def main_rank_validates_alone():
    algo = make_algo()
    step(algo, torch.randn(4, 4))
    if group.is_main():
        algo.nets.eval()
        with torch.no_grad():
            loss_of(algo, torch.randn(4, 4))
        algo.nets.train()
        with torch.no_grad():
            loss_of(algo, torch.randn(4, 4))
    step(algo, torch.randn(4, 4))
    return True


def test_one_rank_may_run_the_net_alone_in_eval_and_under_no_grad(ranks):
    assert ranks.run(main_rank_validates_alone) == [True, True]


def unequal_start():
    algo = make_algo(seed=group.rank())
    before = verify.checksum(algo.nets["policy"]["obs_encoder"].layer.weight)
    with torch.no_grad():
        algo.nets["policy"]["obs_encoder"].grid += group.rank()
    host_algo.make_equal(algo)
    return before, {name: verify.checksum(tensor) for name, tensor in host_algo.named_state(algo)}


def test_make_equal_gives_every_rank_the_main_ranks_weights_buffers_and_average(ranks):
    (before0, after0), (before1, after1) = ranks.run(unequal_start)
    assert before0 != before1 and after0 == after1
    assert after0["nets.policy.obs_encoder.layer.weight"] == before0
    assert any(name.startswith("ema_nets.") for name in after0)
