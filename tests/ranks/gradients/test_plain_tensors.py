"""What a host keeps outside nets, such as clusters that it has fitted to each rank's samples: every
rank trains with the main rank's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.training import agreement
from tests.faults.toy_run import ToyJob, train


def fit(job: Any) -> None:
    """As hosts do before their epochs: other samples, and so another result, on each rank."""
    rank = group.rank()
    rows = torch.stack([batch["actions"].mean(0) for batch in job.loader])
    job.algo.clusters = SimpleNamespace(
        bins=rows, columns=rows.t(), flags=rows > rows.mean() + rank, names=np.array(["a", "b"])
    )
    job.algo.counts = torch.arange(3, dtype=torch.int16) + rank  # which gloo does not send
    job.algo.scale = {"mean": [np.full(3, rank)], "of rank": rank}
    job.algo.rank_rows = torch.full((2,), float(rank))


def kept(job: Any) -> dict:
    return {name: tensor.tolist() for name, tensor in host_algo.plain_tensors(job.algo).items()}


def trained() -> tuple[dict, dict, list]:
    """Collective: the tensors before and after a job of one epoch, and what is a rank's own."""
    before: dict = {}

    def construct(job: Any) -> None:
        fit(job)
        before.update(kept(job))

    job = ToyJob({"construction": construct})
    train(job)
    return before, kept(job), job.algo.rank_rows.tolist()


def test_every_rank_has_the_main_ranks(ranks):
    (first, after, own), (second, other, others) = ranks.run(trained, world_size=2)
    assert set(first) == {
        *("self.clusters.bins", "self.clusters.columns", "self.clusters.flags"),
        *("self.counts", "self.scale['mean'][0]"),
    }
    assert all(first[name] != second[name] for name in first)
    assert after == first and other == first
    assert own == [0.0, 0.0] and others == [1.0, 1.0]


def told(longer: int) -> str | None:
    algo = SimpleNamespace(bins=torch.full((2,), group.rank()), same=torch.ones(2))
    algo.history = [torch.ones(1 + longer * group.rank())]
    return agreement.make_plain_tensors_equal(algo)


def test_the_user_is_told(ranks):
    """Tensors of another shape are left to `ddp.verify`."""
    for longer in (0, 1):
        lines = ranks.run(told, longer, world_size=2)
        assert lines == ["made equal on all ranks, to rank 0's: self.bins"] * 2
