"""A stream that goes on at a saved position delivers exactly what would have come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.rlds.partition import shard_bounds, windows_before
from tests.rlds.test_passes import stream, wait_until_idle


@pytest.mark.parametrize("world, rank", [(1, 0), (2, 1), (3, 0)])
@pytest.mark.parametrize("batches", [0, 3, 9, 40])
def test_the_same_ranks_go_on_to_the_window(load, world, rank, batches):
    train, _ = load()
    whole = train.make_loader(3, rank, world, 7)
    stream(whole, batches)
    position = whole.position()
    resumed = train.make_loader(3, rank, world, 7)
    assert "goes on" in resumed.go_to(position, world, 1)
    assert len(resumed) == len(whole)
    assert stream(resumed, 25) == stream(whole, 25)
    assert resumed.position() == whole.position()


def test_passed_over_windows_are_not_decoded(load):
    train, _ = load()
    whole = train.make_loader(3, 0, 1, 7)
    stream(whole, 10)
    resumed = train.make_loader(3, 0, 1, 7)
    resumed.go_to(whole.position(), 1, 1)
    stream(resumed, 2)
    wait_until_idle(resumed)  # it reads ahead beside us
    assert resumed.frames_delivered > 0
    assert resumed.frames_decoded == resumed.frames_delivered + resumed.frames_prefetched
    assert resumed.frames_decoded < whole.frames_delivered, "passed-over windows were decoded"


@pytest.mark.parametrize("world, batch", [(3, 3), (2, 4)])
def test_other_ranks_or_batches_begin_the_pass_anew_and_say_so(load, world, batch):
    train, _ = load()
    before = train.make_loader(3, 0, 2, 7)
    stream(before, 20)
    position = before.position()
    assert position["pass"] >= 1
    for rank in range(world):
        after = train.make_loader(batch, rank, world, 7)
        assert "begins anew" in after.go_to(position, 2, 5)
        assert after.pass_number == position["pass"]
        share = train.pass_plan(7, position["pass"], rank, world)
        own = {
            base + window
            for base, start, stop in zip(share.base, share.start, share.stop)
            for window in range(start, stop)
        }
        assert set(stream(after, 2)) <= own


@given(
    windows=st.integers(1, 5000),
    number=st.integers(0, 40),
    world=st.integers(1, 9),
)
def test_the_closed_form_is_the_sum_of_the_stretches(windows, number, world):
    for rank in range(world):
        total = sum(
            bounds[1] - bounds[0]
            for bounds in (shard_bounds(max(windows, world), p, rank, world) for p in range(number))
        )
        assert windows_before(max(windows, world), number, rank, world) == total
