"""The partition as pure arithmetic: exact in every pass, for any files, lengths and ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from robomimic_ddp.data.rlds.order import partition
from robomimic_ddp.data.rlds.order.pass_order import pass_order
from robomimic_ddp.data.rlds.order.pass_schedule import PassSchedule, Segment

worlds = st.integers(1, 64)
passes = st.integers(0, 50)


@st.composite
def tables(draw):
    """(file of each episode, windows of each episode): some episodes give none."""
    per_file = draw(st.lists(st.integers(1, 6), min_size=1, max_size=20))
    files = np.repeat(np.arange(len(per_file)), per_file)
    count = len(files)
    windows = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    windows[draw(st.integers(0, count - 1))] = 7  # at least one episode counts
    return files, np.array(windows)


def windows_of(pieces):
    """The (episode, number) pairs of `pieces`, in reading order."""
    return [
        (int(episode), number)
        for episode, start, stop in zip(pieces.episode, pieces.start, pieces.stop)
        for number in range(start, stop)
    ]


def share(table, seed, number, rank, world):
    """The pieces of `rank` in pass `number` of a run that nothing changes."""
    schedule = PassSchedule(*table, seed, Segment(world, 1, 4))
    return schedule.share(number, rank).pieces


@given(st.integers(1, 5000), worlds, st.integers(1, 33), st.integers(1, 12))
def test_all_ranks_have_the_promised_batches_and_the_rest_opens_the_next_pass(
    windows, world, batch, run_length
):
    assume(windows >= world)
    schedule = PassSchedule(np.zeros(1, int), np.array([windows]), 0, Segment(world, batch, 4))
    given_so_far, batches_so_far = [0] * world, 0
    for number in range(run_length):
        end_of_row, before = 0, schedule.windows_before(number)
        assert before == sum(given_so_far)
        for rank in range(world):
            assert partition.windows_of_rank(before, rank, world) == given_so_far[rank]
            start, stop = partition.stretch(before, before + windows, rank, world)
            assert start == end_of_row <= stop  # the ranks' stretches touch and never overlap
            end_of_row = stop
            given_so_far[rank] += stop - start
        assert end_of_row == windows
        assert max(given_so_far) - min(given_so_far) <= 1
        batches = schedule.batches_in(number)
        assert batches >= (1 if windows >= batch * world else 0)
        for taken in {batches_so_far, batches_so_far + batches - 1} if batches else ():
            assert schedule.part_of(taken) == number
        batches_so_far += batches
        # As many full batches as the poorest rank can make, and not one more.
        assert batches_so_far == min(given_so_far) // batch
        left = sum(given_so_far) - batches_so_far * batch * world
        assert 0 <= left < batch * world


@settings(max_examples=40)
@given(tables(), worlds, passes)
def test_files_stay_whole_except_at_the_cuts(table, world, number):
    files, windows = table
    assume(windows.sum() >= world)
    readers = {}
    for rank in range(world):
        for file in files[share(table, 3, number, rank, world).episode]:
            readers.setdefault(int(file), set()).add(rank)
    extra_readers = sum(len(ranks) - 1 for ranks in readers.values())
    assert extra_readers <= world - 1


@given(tables(), passes, st.integers(0, 1000))
def test_order_is_a_permutation_that_keeps_files_together(table, number, seed):
    files, _ = table
    order = pass_order(files, seed, number)
    assert sorted(order) == list(range(len(files)))
    seen = files[order]
    assert np.count_nonzero(np.diff(seen)) == len(np.unique(files)) - 1
    assert np.array_equal(order, pass_order(files, seed, number))


@given(tables(), st.data())
def test_parts_of_a_row_are_the_windows_asked_for(table, data):
    files, windows = table
    row = partition.pass_row(windows, pass_order(files, 1, 2), 2)
    everything = windows_of(row)
    assert len(everything) == row.windows == windows.sum()
    start = data.draw(st.integers(0, row.windows))
    stop = data.draw(st.integers(start, row.windows))
    assert windows_of(row.cut(start, stop)) == everything[start:stop]
    some = sorted(data.draw(st.sets(st.integers(0, row.windows - 1))))
    picked = row.at(np.array(some, np.int64))
    assert windows_of(picked) == [everything[window] for window in some]
    assert windows_of(partition.joined([row.cut(0, start), row.cut(start, row.windows)])) == (
        everything
    )
