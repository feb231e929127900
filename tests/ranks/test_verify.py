"""What `verify` must let pass on real ranks; what it must catch: tests/faults."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from robomimic_ddp import verify
from robomimic_ddp.distributed import group, host_algo, rng
from tests.ranks.toy import make_algo, step


def with_batch_norm():
    """Running means are each rank's own after a step; that is how DDP works, and no fault."""
    algo, rank = make_algo(batch_norm=True), group.rank()
    rng.seed_streams(0, rank)
    share = {"telling_digest": lambda: f"part {rank}", "order_digest": lambda: "one draw"}
    verifier = verify.Verifier(algo, SimpleNamespace(**share))
    verifier.start()
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
