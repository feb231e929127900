"""An epoch that is stopped after any step and continued has the log of one that was not."""

from __future__ import annotations

import pytest

from robomimic_ddp.checkpoint import plain
from robomimic_ddp.monitoring.step_logs import EpochPart
from tests.ranks.epoch_parts import STEPS, batches
from tests.ranks.hosts import Algo, epoch_log, other_order_run_epoch, real_run_epoch


class Stop(BaseException):
    """Raised after a step, as on request."""


def run_part(run_epoch, part, done=0, **kwargs):
    result = epoch_log(run_epoch, part)(
        model=Algo(), data_loader=batches(done), epoch=1, num_steps=STEPS, **kwargs
    )
    log = result[0] if isinstance(result, tuple) else result
    return {key: value for key, value in log.items() if not key.startswith("Time_")}


def stop_and_continue(shape, stop_after):
    """(the whole epoch's log, the log after a stop), its part as in a file."""
    run_epoch = real_run_epoch() if shape == "real" else other_order_run_epoch
    whole = run_part(run_epoch, EpochPart())

    def after_step():
        if part.steps == stop_after:
            raise Stop

    part = EpochPart(after_step)
    try:
        run_part(run_epoch, part)
    except Stop:
        pass
    saved = plain([part.steps, part.logs.samples, part.logs.totals, part.step_logs])
    again = EpochPart()
    again.steps, again.logs.samples, again.logs.totals, again.step_logs = saved
    continued = run_part(run_epoch, again, done=stop_after)
    return whole, continued, again.steps


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("shape", ["real", "other"])
@pytest.mark.parametrize("stop_after", [1, 3, STEPS])
def test_the_log_is_of_the_whole_epoch(world_size, shape, stop_after, ranks):
    results = ranks.run(stop_and_continue, shape, stop_after, world_size=world_size)
    for whole, continued, steps in results:
        assert continued == whole and whole["Loss"] != 0
        assert steps == 0, "the next epoch must begin with its first step"
    assert all(result == results[0] for result in results)


def not_stopped():
    """Without a stop the host's own function gets its own arguments, and gives its own log."""
    plainly = other_order_run_epoch(Algo(), 1, batches(), STEPS)[0]
    return run_part(other_order_run_epoch, EpochPart()), plainly


def test_one_rank_without_a_stop_is_the_host(ranks):
    [(ours, plainly)] = ranks.run(not_stopped, world_size=1)
    assert ours == {key: value for key, value in plainly.items() if not key.startswith("Time_")}
