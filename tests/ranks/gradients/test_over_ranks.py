"""A statistic of each rank's batch: its mean over ranks in a training step, else untouched.

tests/parity/test_algorithms.py (TD3-BC) has what is trained with it.
"""

from __future__ import annotations

import pytest
import torch

from robomimic_ddp import api
from robomimic_ddp.distributed import group
from robomimic_ddp.training import run
from tests.plans import planned_run


def means():
    """Collective but for what the main rank computes alone: (mean of a step, whether values pass
    unchanged in validation and outside a run).
    """
    own = torch.tensor([1.0, 2.0 + group.rank() / 3], dtype=torch.float64, requires_grad=True)
    with run.made_current(planned_run()):
        mean = api.over_ranks(own)
        with torch.no_grad():
            validates = not group.is_main() or api.over_ranks(own) is own
    acts = not group.is_main() or api.over_ranks(own) is own
    return mean, validates and acts


def test_all_ranks_get_the_mean_as_a_constant_of_full_precision(ranks):
    """And a rank may validate and act alone."""
    for mean, is_left_alone in ranks.run(means):
        assert mean.tolist() == pytest.approx([1.0, 2.0 + 1 / 6], abs=1e-15)
        assert mean.dtype == torch.float64 and not mean.requires_grad and is_left_alone


def test_one_process_keeps_its_value_with_the_gradient(ranks):
    ((mean, _),) = ranks.run(means, world_size=1)
    assert mean.requires_grad
