"""The shuffle as arithmetic: a permutation, bounded in time and memory, entered at any place."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.data.rlds.order.shuffle_plan import Shuffle

counts, buffers, seeds = st.integers(1, 600), st.integers(1, 700), st.integers(0, 2**31)


def whole(shuffle):
    """All windows in the order in which they leave."""
    return shuffle.leaving(0, shuffle.count)[0].tolist()


@given(counts, buffers, seeds)
def test_every_window_leaves_once_and_waits_for_a_bounded_time(count, buffer, seed):
    shuffle = Shuffle(count, buffer, seed)
    order, places = shuffle.leaving(0, count)
    assert sorted(order.tolist()) == list(range(count))
    assert (np.diff(places) >= 0).all()
    assert (places >= order).all(), "a window left before it had entered"
    assert (places - order <= max(shuffle.spread - 1, 0)).all()
    assert whole(Shuffle(count, buffer, seed)) == order.tolist()


@given(counts, buffers, seeds, st.data())
def test_any_stretch_of_the_order_is_found_by_itself(count, buffer, seed, data):
    shuffle = Shuffle(count, buffer, seed)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    before, after = shuffle.left_before(start), shuffle.left_before(stop)
    assert shuffle.leaving(start, stop)[0].tolist() == whole(shuffle)[before:after]


@given(counts, buffers, seeds, st.data())
def test_what_waits_is_what_has_not_left(count, buffer, seed, data):
    shuffle = Shuffle(count, buffer, seed)
    taken = data.draw(st.integers(0, count))
    waiting, then = shuffle.waiting(taken)
    left = set(whole(shuffle)[taken:])
    assert waiting.tolist() == sorted(window for window in left if window < then)
    assert left >= set(range(then, count)) and len(left) == len(waiting) + count - then
    assert len(waiting) == 0 or then - waiting[0] <= shuffle.spread


def test_about_as_many_windows_wait_as_the_buffer_holds():
    shuffle = Shuffle(40_000, 1_000, 5)
    held = [place - shuffle.left_before(place) for place in range(0, 40_000, 500)]
    assert max(held) < 1_100 and 900 < np.mean(held[4:-4]) < 1_050


def test_windows_are_mixed_as_by_a_shuffle_buffer():
    """Correlation of neighbours that leave is that of the buffer; nothing is left in order."""
    shuffle = Shuffle(20_000, 500, 3)
    order = np.array(whole(shuffle))
    jumps = np.abs(np.diff(order))
    assert 250 < np.median(jumps) < 450 and np.mean(jumps == 1) < 0.01
    first = order[:32]  # the first batch already comes from a full buffer
    assert first.max() > 300 and len(np.unique(first // 50)) > 6


def test_no_buffer_leaves_the_order_as_it_is():
    assert whole(Shuffle(100, 1, 0)) == list(range(100))


def test_a_buffer_for_everything_is_a_full_permutation():
    order = np.array(whole(Shuffle(1_000, 5_000, 1)))
    assert abs(np.corrcoef(order, np.arange(1_000))[0, 1]) < 0.1
