"""What `verify` must catch, each fault planted on real ranks, and what it must let pass."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from robomimic_ddp import verify
from robomimic_ddp.distributed import group, host_algo, rng
from tests.ranks.pool import RankError
from tests.ranks.toy import loss_of, make_algo, step


def start(fault=None):
    """A verified start; returns the algo. `fault` names what goes wrong before it."""
    algo = make_algo(
        seed=group.rank() if fault == "other weights" else 0, batch_norm=fault == "batch norm"
    )
    if fault == "parameter outside":
        algo.nets["extra"] = nn.Linear(2, 2)
    if fault != "same noise":
        rng.seed_streams(0, group.rank())
    if fault == "same augmentation":
        np.random.seed(1)
        import random

        random.seed(1)
    share = "same" if fault == "same data" else f"part {group.rank()}"
    order = f"drawn by rank {group.rank()}" if fault == "other order" else "one draw"
    loader = SimpleNamespace(telling_digest=lambda: share, order_digest=lambda: order)
    verifier = verify.Verifier(algo, loader)
    verifier.start()
    return algo, verifier


def clean():
    algo, verifier = start()
    for _ in range(2):
        step(algo, torch.randn(4, 4))
    verifier.epoch_end(1)
    return True


def test_a_clean_run_passes(ranks):
    assert ranks.run(clean) == [True, True]


@pytest.mark.parametrize(
    "fault, words",
    [
        (
            "other weights",
            [
                "before the first step",
                "nets.policy.obs_encoder.layer.weight",
                "not the same on all ranks",
            ],
        ),
        ("parameter outside", ["nets.extra.weight", "outside the nets", "2 different models"]),
        ("same noise", ["torch's random state", "[0, 1]", "same noise"]),
        ("same augmentation", ["numpy's and Python's random state"]),
    ],
)
def test_faults_before_the_first_step(ranks, fault, words):
    with pytest.raises(RankError) as caught:
        ranks.run(start_only, fault)
    for word in ["VerifyError", *words]:
        assert word in str(caught.value)


def start_only(fault):
    start(fault)


def first_step(fault):
    algo, _ = start(fault if fault in ("same data", "other order") else None)
    optimizer, x = algo.optimizers["policy"], torch.randn(4, 4)
    policy = algo.nets["policy"]
    if fault == "through forward":
        (policy["noise_pred_net"].forward(policy["obs_encoder"](x)) - torch.randn(4, 4)).pow(
            2
        ).mean().backward()
    elif fault == "through another method":
        loss = (
            (policy["noise_pred_net"](policy["obs_encoder"].encode(x)) - torch.randn(4, 4))
            .pow(2)
            .mean()
        )
        loss.backward()
    elif fault == "reseeded":
        torch.manual_seed(3)
        loss_of(algo, x).backward()
    else:
        loss_of(algo, x).backward()
    if fault == "one rank adds to its gradient" and group.rank() == 1:
        policy["noise_pred_net"][2].bias.grad += 1e-6
    optimizer.step()


@pytest.mark.parametrize(
    "fault, words",
    [
        (
            "through forward",
            ["gradient of nets.policy.noise_pred_net", "policy.noise_pred_net was never called"],
        ),
        (
            "through another method",
            ["gradient of nets.policy.obs_encoder", "policy.obs_encoder was never called"],
        ),
        (
            "one rank adds to its gradient",
            ["gradient of nets.policy.noise_pred_net.2.bias", "rank(s) [1]"],
        ),
        ("reseeded", ["torch's random state", "re-seeds torch"]),
        ("same data", ["the share of the data", "same samples"]),
        ("other order", ["the order of the present pass", "a separate generator"]),
    ],
)
def test_faults_at_the_first_step(ranks, fault, words):
    with pytest.raises(RankError) as caught:
        ranks.run(first_step, fault)
    for word in ["VerifyError", *words]:
        assert word in str(caught.value)


def with_batch_norm():
    """Running means are each rank's own after a step; that is how DDP works, and no fault."""
    algo, verifier = start("batch norm")
    for _ in range(2):
        step(algo, torch.randn(4, 4))
    norm = algo.nets["policy"]["noise_pred_net"][1]
    apart = float(norm.running_mean[0])
    host_algo.make_buffers_equal(algo)
    verifier.epoch_end(1)
    return apart, float(norm.running_mean[0])


def test_running_means_become_the_main_ranks_and_raise_no_alarm(ranks):
    (apart0, after0), (apart1, after1) = ranks.run(with_batch_norm)
    assert apart0 != apart1 and after0 == after1 == apart0


def faulty_epoch(fault):
    algo, verifier = start()
    step(algo, torch.randn(4, 4))
    if group.rank() == 1:
        if fault == "average stepped on one rank":
            for averaged in algo.ema_nets.parameters():
                averaged.mul_(0.5)
        elif fault == "one rank steps once more":
            algo.optimizers["policy"].step()
        else:
            algo.optimizers["policy"].param_groups[0]["lr"] = 7e-3
    verifier.epoch_end(4)


@pytest.mark.parametrize(
    "fault, words",
    [
        ("average stepped on one rank", ["end of epoch 4", "ema_nets."]),
        ("one rank steps once more", ["optimizer policy step"]),
        ("a schedule moved on one rank", ["optimizer policy learning rates", "0.007"]),
    ],
)
def test_faults_that_show_at_the_end_of_an_epoch(ranks, fault, words):
    with pytest.raises(RankError) as caught:
        ranks.run(faulty_epoch, fault)
    for word in ["VerifyError", *words]:
        assert word in str(caught.value)
