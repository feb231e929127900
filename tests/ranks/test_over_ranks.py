"""A statistic of each rank's batch: its mean over ranks in a training step, else untouched."""

from __future__ import annotations

import pytest
import torch

from robomimic_ddp import api
from robomimic_ddp.distributed import group
from robomimic_ddp.training import run


def mean_in_a_step():
    token = run._current.set(run.Run(None, None, seed=1, fine_tuning=False))
    try:
        own = torch.tensor([1.0, 2.0 + group.rank() / 3], dtype=torch.float64, requires_grad=True)
        mean = api.over_ranks(own)
    finally:
        run._current.reset(token)
    return mean.tolist(), mean.dtype, mean.requires_grad, own.tolist()


def test_all_ranks_get_the_mean_as_a_constant_of_full_precision(ranks):
    for rank, (mean, dtype, has_gradient, own) in enumerate(ranks.run(mean_in_a_step)):
        assert mean == pytest.approx([1.0, 2.0 + 1 / 6], abs=1e-15)
        assert (dtype, has_gradient, own) == (torch.float64, False, [1.0, 2.0 + rank / 3])


def main_rank_alone():
    token = run._current.set(run.Run(None, None, seed=1, fine_tuning=False))
    own = torch.ones(1, requires_grad=True)
    try:
        with torch.no_grad():
            validates = not group.is_main() or api.over_ranks(own) is own
    finally:
        run._current.reset(token)
    return validates, not group.is_main() or api.over_ranks(own) is own


def test_a_rank_may_validate_and_act_alone(ranks):
    """Ranks may validate on unequal numbers of batches; outside a run there is no other rank."""
    assert ranks.run(main_rank_alone) == [(True, True)] * 2


def test_one_process_keeps_its_value_with_the_gradient():
    token = run._current.set(run.Run(None, None, seed=1, fine_tuning=False))
    own = torch.ones(1, requires_grad=True)
    try:
        assert api.over_ranks(own) is own
    finally:
        run._current.reset(token)
