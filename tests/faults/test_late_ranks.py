"""A rank that takes a step more than the others is named when the group's time is up."""

from __future__ import annotations

import pytest

from tests.faults.toy_run import STEPS
from tests.hosts import torchrun

pytestmark = [pytest.mark.planted_fault, pytest.mark.timeout(300)]


def test_a_step_more_on_one_rank_names_it_and_ends_the_job():
    """The others are at the step log, which the rank with the step more waits for in DDP."""
    result = torchrun(None, "tests.faults.late_rank", ranks=3, timeout=120)
    assert result.returncode != 0 and not result.timed_out and not result.leftovers, result
    # Whose time is up first says it: rank 1, which waits in DDP, or one of the others.
    waited = "for at least 10 s (ddp.timeout)."
    behind = f"waited at: epoch 1 train log, {waited} Not there yet: rank 1 is at: epoch 1 train"
    others = "Other ranks are executing a different collective"
    own = f"rank 1 waited at: epoch 1 train, step {STEPS + 1}, {waited} {others}"
    assert behind in result.stderr or own in result.stderr, result
