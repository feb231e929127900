"""Micro-batches on real ranks: one reduction a step, one average, and `verify` stays awake."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from robomimic_ddp import verify
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.training import presets
from tests.ranks.pool import RankError
from tests.ranks.toy import loss_of, make_algo

MICRO_BATCHES = 3


def backprop_for_loss(net, optim, loss, max_grad_norm=None, retain_graph=False):
    """Stands for the host's; its source differs, so that no preset replaces it."""
    optim.zero_grad()
    loss.backward()
    before = {name: one.grad.clone() for name, one in net.named_parameters()}
    optim.step()
    return before


class Algo:
    """The toy's nets with the methods that a host's loop calls."""

    def __init__(self):
        vars(self).update(vars(make_algo()))
        self.averaged = 0
        self.ema.step = self.average
        self.forwards, self.waiting = [], []

    def average(self, nets):
        self.averaged += 1

    def process_batch_for_training(self, batch):
        return batch

    def train_on_batch(self, batch, epoch):
        loss = loss_of(self, batch["actions"])
        self.forwards.append(len(batch["actions"]))
        nets = [net for _, net in verify.structure.parallel_nets(self)]
        self.waiting.append([parallel.state_of(net).accumulating for net in nets])
        backprop = sys.modules["tests.utils.torch_utils"].backprop_for_loss
        norms = backprop(self.nets, self.optimizers["policy"], loss)
        self.ema.step(self.nets)
        return {"loss": loss.item(), "gradients": norms}

    def log_info(self, info):
        return {"Loss": info["loss"]}


def prepared(undo, **options):
    """Collective: an Algo that takes its steps as the options say; its nets are built."""
    module = ModuleType("tests.utils.torch_utils")
    module.backprop_for_loss = backprop_for_loss
    sys.modules[module.__name__] = module
    undo.callback(sys.modules.pop, module.__name__)
    algo = Algo()
    nets = [net for _, net in verify.structure.parallel_nets(algo)]
    presets.prepare(algo, Options(accumulate=MICRO_BATCHES, **options), nets, undo)
    for net in nets:
        parallel.state_of(net).build(net)
    return algo, nets


def counted(nets):
    """Numbers of the buckets of `nets` that are reduced from now on."""
    reduced = []

    def hook(state, bucket):
        reduced.append(bucket.index())
        return default_hooks.allreduce_hook(state, bucket)

    for net in nets:
        parallel.state_of(net).parallel.register_comm_hook(None, hook)
    return reduced


def count_reductions():
    """((buckets reduced, steps, averages), micro-batches, which nets' gradients wait in each of
    them, gradients) of one step on this rank.
    """
    with ExitStack() as undo:
        algo, nets = prepared(undo)
        reduced = counted(nets)
        torch.manual_seed(group.rank())
        batch = algo.process_batch_for_training({"actions": torch.randn(8, 4)})
        infos = algo.train_on_batch(batch, 1)
        taken = algo.optimizers["policy"].state_dict()["state"][0]["step"]
        counts = len(reduced), float(taken), algo.averaged
        return counts, algo.forwards, algo.waiting, infos[-1]["gradients"]


def test_gradients_are_reduced_once_and_the_rest_happens_once(ranks):
    zero, one = ranks.run(count_reductions)
    for counts, micro_batches, waiting, _ in (zero, one):
        assert counts == (2, 1.0, 1)  # a bucket of each of two nets
        assert micro_batches == [2, 3, 3]
        assert waiting == [[True] * 2, [True] * 2, [False] * 2]
    for name, gradient in zero[-1].items():
        assert torch.equal(gradient, one[-1][name]), name


def reductions_of_steps(static_graph):
    """Buckets that are reduced in each of three steps; whether nets say that they wait."""
    waits = []
    with ExitStack() as undo:
        algo, nets = prepared(undo)
        reduced = counted(nets)
        for net in nets:
            if static_graph:
                parallel.state_of(net).parallel._set_static_graph()
        algo.average = lambda nets: None
        counts = []
        for _ in range(3):
            batch = algo.process_batch_for_training({"actions": torch.randn(6, 4)})
            algo.train_on_batch(batch, 1)
            counts.append(len(reduced))
            reduced.clear()
            waits += [parallel.state_of(net).accumulating for net in nets]
        algo.nets.eval()
        return counts, any(waits), len(algo.process_batch_for_training(batch_of(6))["actions"])


def batch_of(samples):
    return {"actions": torch.zeros(samples, 4)}


@pytest.mark.parametrize("static_graph, first", [(False, 2), (True, 2 * MICRO_BATCHES)])
def test_a_static_graph_is_recorded_with_reductions(ranks, static_graph, first):
    assert ranks.run(reductions_of_steps, static_graph) == [([first, 2, 2], False, 6)] * 2


def leave_no_sync_on():
    """Collective: one verified step, with a net left in no_sync by mistake."""
    with ExitStack() as undo:
        algo, nets = prepared(undo)
        rng.seed_streams(7, group.rank())
        np.random.seed(group.rank())
        verifier = verify.Verifier(algo)
        undo.callback(verifier.stop)
        verifier.start()
        verifier.epoch_begin(1)
        parallel.state_of(nets[0]).parallel.require_backward_grad_sync = False
        algo.train_on_batch(
            algo.process_batch_for_training({"actions": torch.randn(6, 4)}),
            1,
        )


@pytest.mark.planted_fault
def test_verify_still_sees_a_no_sync_that_is_left_on(ranks):
    """That it raises no false alarm: the micro-batches of tests/parity, where it is on."""
    with pytest.raises(RankError, match="is inside DDP's no_sync"):
        ranks.run(leave_no_sync_on)
