"""A host that draws whole batches from several train loaders resumes at the place of each."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from torch.utils.data import TensorDataset

from robomimic_ddp import api
from robomimic_ddp.checkpoint import FoundRun
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.training.state import state_saver
from tests.ranks.running import running
from tests.ranks.toy import make_algo

SIZES = {"prior": 40, "target": 24, "retrieval": 32}


def batches(directory, steps, found=None):
    """Collective: the samples of this rank's next steps, and what a resumed run prints. A new run
    saves its state after the second step.
    """
    with running(directory, found) as run, contextlib.redirect_stdout(io.StringIO()) as printed:
        loaders = {
            name: api.train_loader(
                dataset=TensorDataset(torch.arange(size)), batch_size=4, shuffle=True
            )
            for name, size in SIZES.items()
        }
        rng.seed_streams(7, group.rank())
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        iterators, seen = {name: iter(loader) for name, loader in loaders.items()}, []
        for step in range(steps):
            if found is None and step == 2:
                saver.epoch_end(1)
            seen.append([next(iterator)[0].tolist() for iterator in iterators.values()])
        return seen, printed.getvalue()


@pytest.mark.parametrize("world_size", [1, 2])
def test_each_loader_resumes_at_its_place(world_size, ranks, tmp_path):
    whole = ranks.run(batches, tmp_path, 3, world_size=world_size)
    resumed = ranks.run(batches, tmp_path, 1, FoundRun(tmp_path, "state"), world_size=world_size)
    for (before, _), (after, _) in zip(whole, resumed):
        assert after == before[2:]
    assert resumed[0][1].count("resumes after") == len(SIZES)
