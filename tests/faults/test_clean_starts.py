"""No false alarm: 160 clean first steps at tiny batches, 10,000 in the slow tier."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset

from robomimic_ddp import verify
from robomimic_ddp.data import sampling
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.distributed.gradients import parallel
from tests.faults.toy_run import BATCH, Numbers, ToyJob, train

SAMPLES = (8, 9, 24, 96)


def tiny_algo():
    """One net of 16 parameters, wrapped once; it keeps training over all starts."""
    torch.manual_seed(0)
    net = parallel.parallelise(nn.Linear(4, 4, bias=False), "ddp", {}, "policy.noise_pred_net")
    nets = nn.ModuleDict({"policy": nn.ModuleDict({"noise_pred_net": net})})
    return SimpleNamespace(
        nets=nets, optimizers={"policy": torch.optim.SGD(nets.parameters(), 1e-3)}
    )


def clean_starts(first_seed: int, count: int, samples: int) -> int:
    """Collective: for each seed new streams, a new order of the data and a new `Verifier`, which
    sees the start and a first step; every tenth also an epoch's first forward and its end.
    """
    algo, dataset = tiny_algo(), Numbers()
    dataset.rows = dataset.rows[:samples]
    net, optimizer = algo.nets["policy"]["noise_pred_net"], algo.optimizers["policy"]
    for seed in range(first_seed, first_seed + count):
        # torch.manual_seed keeps a traceback of every call for a CUDA that is not there.
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)
        loader = loader_of(dataset, seed)
        rng.seed_streams(seed, group.rank())
        verifier = verify.Verifier(algo, loader)
        verifier.start()
        if seed % 10 == 0:
            verifier.epoch_begin(seed)
        batch = dataset.rows[list(loader.sampler)[:BATCH]]
        optimizer.zero_grad()
        (net(batch) - torch.randn(BATCH, 4)).pow(2).mean().backward()
        optimizer.step()
        assert verifier.proven == dict.fromkeys(verify.NOT_PROVEN, True)
        if seed % 10 == 0:
            verifier.end()
            verifier.epoch_end(seed)
        verifier.stop()
    return count


def loader_of(dataset, seed):
    """Of three orders two are weighted draws with repeats, in which shares may agree by chance."""
    weights = torch.ones(len(dataset))
    if seed % 3 == 1:
        weights[0] = 1000.0
    sampler = torch.utils.data.WeightedRandomSampler(weights, 2 * BATCH + seed % 30)
    return sampling.train_loader(
        torch.utils.data.DataLoader,
        {"dataset": dataset, **({"sampler": sampler} if seed % 3 else {"shuffle": True})},
        rank=group.rank(),
        world_size=group.world_size(),
        seed=seed,
        batch_size_per_rank=BATCH,
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("call", "starts"),
    [
        *((call, 40) for call in range(len(SAMPLES))),
        *(pytest.param(call, 1000, marks=pytest.mark.slow) for call in range(10)),
    ],
)
def test_no_false_alarm(call, starts, ranks):
    """The processes, the group and the net's wrapping are made once for each call's starts."""
    samples = SAMPLES[call % len(SAMPLES)]
    counts = ranks.run(clean_starts, call * starts, starts, samples, timeout=120)
    assert counts == [starts] * 2


def joined_datasets() -> int:
    """Collective: an epoch on two datasets in one, which numbers the samples of each from 0."""
    wrong: list[int] = []

    def join(job):
        job.dataset = ConcatDataset([Numbers(), Numbers()])

    def note(batch):
        wrong.extend(index for index in batch["index"].tolist())
        return batch

    job = ToyJob({"data": join})
    job.change_batch = note
    train(job)
    share = job.loader.share_of_pass[:BATCH].tolist()
    return sum(index == position for index, position in zip(wrong, share))


def test_samples_that_are_numbered_in_their_own_dataset(ranks):
    same = ranks.run(joined_datasets)
    assert any(BATCH // 2 <= count < BATCH for count in same), "else nothing is compared"
