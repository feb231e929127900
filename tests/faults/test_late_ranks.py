"""A rank that others wait for is named before the group's time runs out."""

from __future__ import annotations

import sys
import time

import pytest

from robomimic_ddp import group, roll_call
from tests.hosts import run

pytestmark = [pytest.mark.planted_fault, pytest.mark.timeout(300)]
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=3"]


def waits(place, patience):
    """Collective: rank 1 comes a while after the patience of the others ended."""
    kept, roll_call.PATIENCE_SECONDS = roll_call.PATIENCE_SECONDS, patience
    together, roll_call._TOGETHER_SECONDS = roll_call._TOGETHER_SECONDS, 0.4
    warnings = []
    try:
        for _ in range(2):
            if group.rank() == 1:
                time.sleep(1.5)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(roll_call.logger, "warning", lambda *text: warnings.append(text))
                group.gather_objects(group.rank(), place)
    finally:
        roll_call.PATIENCE_SECONDS, roll_call._TOGETHER_SECONDS = kept, together
    return [text[1] for text in warnings]


def test_the_late_rank_is_named_by_those_that_wait_each_time(ranks):
    expected = ["rank(s) [1] have not reached: end of epoch 3"] * 2
    found = ranks.run(waits, "end of epoch 3", 0.3, world_size=3)
    assert found == [expected, [], expected]


def test_nobody_is_named_who_comes_in_time(ranks):
    assert ranks.run(waits, "end of epoch 3", 30.0, world_size=3) == [[], [], []]


def test_a_step_more_on_one_rank_names_it_and_ends_the_job():
    """The others are at the step log, which the rank with the step more waits for in DDP."""
    result = run(None, *LAUNCH, "-m", "tests.faults.late_rank", timeout=120)
    assert result.returncode != 0 and not result.timed_out and not result.leftovers, result
    assert "rank(s) [1] have not reached: the log of an epoch's steps" in result.stderr, result
