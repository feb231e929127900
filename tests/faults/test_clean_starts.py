"""No false alarm: 10,000 clean first steps at tiny batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robomimic_ddp import group, run, sampling, verify
from tests.faults.toy_run import BATCH, Numbers
from tests.ranks.toy import make_algo, step

CALLS, STARTS = 10, 1000


def clean_starts(first_seed: int, count: int, samples: int) -> int:
    """Collective: for each seed a new optimizer, streams, order of the data and `Verifier`, which
    sees a first step and the end of an epoch. The nets are wrapped once and keep training.
    """
    algo = make_algo()
    dataset = Numbers()
    dataset.rows = dataset.rows[:samples]
    for seed in range(first_seed, first_seed + count):
        torch.manual_seed(seed)
        np.random.seed(seed)
        parameters = algo.nets.parameters()
        algo.optimizers["policy"] = torch.optim.SGD(parameters, lr=1e-3, foreach=True)
        loader = sampling.train_loader(
            torch.utils.data.DataLoader,
            {"dataset": dataset, "sampler": sampler_of(dataset, seed)},
            rank=group.rank(),
            world_size=group.world_size(),
            seed=seed,
            batch_size_per_rank=BATCH,
        )
        run.seed_streams(seed, group.rank())
        verifier = verify.Verifier(algo, loader)
        verifier.start()
        verifier.epoch_begin(seed)
        step(algo, next(iter(loader))["obs"])
        assert verifier.proven == {"gradients_equal": True, "noise_differs": True}
        if seed % 10 == 0:
            verifier.before_buffers_are_made_equal(seed)
            verifier.epoch_end(seed)
        verifier.stop()
    return count


def sampler_of(dataset, seed):
    """Two of three orders are weighted draws with repeats, in which shares may agree by chance."""
    weights = torch.tensor([1000.0] + [1.0] * (len(dataset) - 1))
    if seed % 3 == 0:
        return torch.utils.data.SequentialSampler(dataset)
    weights = weights if seed % 3 == 1 else torch.ones(len(dataset))
    return torch.utils.data.WeightedRandomSampler(weights, 2 * BATCH + seed % 30)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", range(CALLS))
def test_no_false_alarm(call, ranks):
    """The processes, the group and the nets' wrapping are made once for each 1,000 starts."""
    samples = (8, 9, 24, 96)[call % 4]
    counts = ranks.run(clean_starts, call * STARTS, STARTS, samples, timeout=120)
    assert counts == [STARTS] * 2
