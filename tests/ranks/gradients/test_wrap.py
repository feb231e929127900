"""The wrapper on two gloo ranks: gradients are averaged, eval runs alone, a bypassed gradient is an
error.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import torch
from torch import nn

from robomimic_ddp import verify
from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.distributed.gradients import parallel
from tests.faults.toy_run import ToyJob
from tests.faults.toy_run import train as train_toy
from tests.ranks.toy import loss_of, make_algo, step


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


def shapes_warned_of(filtered):
    """Shapes of weights, by torch's warnings that gradients have other strides than DDP's buckets:
    a weight of one input channel and one that becomes channels last under DDP's hands.
    """
    with warnings.catch_warnings(record=True) as caught, torch.random.fork_rng():
        warnings.simplefilter("always")
        torch.set_warn_always(True)  # else once a process
        try:
            for channels in (1, 2):
                net = parallel.parallelise(nn.Conv2d(channels, 8, 3), "ddp")
                images = torch.ones(2, 16, 16, channels).permute(0, 3, 1, 2)  # as hosts do
                net(images)
                if channels == 2:
                    net.to(memory_format=torch.channels_last)
                with parallel.without_false_alarms() if filtered else nullcontext():
                    net(images).sum().backward()
        finally:
            torch.set_warn_always(False)
    texts = [str(one.message) for one in caught]
    return [text.partition("grad.sizes() = ")[2].partition(", strides")[0] for text in texts]


def test_only_gradients_that_are_copied_in_another_order_are_warned_of(ranks):
    assert ranks.run(shapes_warned_of, False) == [["[8, 1, 3, 3]", "[8, 2, 3, 3]"]] * 2
    assert ranks.run(shapes_warned_of, True) == [["[8, 2, 3, 3]"]] * 2


def filtered_in_training():
    def is_filtered(*_):
        patterns = [one[1].pattern for one in warnings.filters if one[1] is not None]
        seen.append(parallel._SAME_MEMORY in patterns)

    seen: list[bool] = []
    train_toy(ToyJob({"step": is_filtered}))
    is_filtered()
    return seen[0], seen[-1]


def test_training_has_the_filter_and_puts_it_back(ranks):
    found = ranks.run(filtered_in_training, world_size=2)
    assert found == [(True, False)] * 2
