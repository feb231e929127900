"""Window arithmetic against slow loops that say what is meant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from robomimic_ddp.data.rlds.order.windows import (
    WindowShape,
    picked_windows,
    window_indices,
    windows_per_pass,
)

shapes = st.builds(WindowShape, st.integers(1, 4), st.integers(1, 17), st.booleans(), st.booleans())


@example(WindowShape(3, 4, True, True), 9)
@given(shapes, st.integers(1, 40))
def test_windows_are_the_hosts(shape, length):
    """Every window of the host's index map, with the host's slices and edge padding."""
    back = shape.frame_stack - 1
    first = 0 if shape.pad_frame_stack else back
    last = length if shape.pad_seq_length else length - shape.seq_length + 1
    steps = list(range(first, last))
    assert shape.count(np.array([length]))[0] == len(steps)
    if not steps:
        return
    observed, acted, inside = window_indices(np.array(steps), length, shape)
    episode = np.arange(length)
    for row, step in enumerate(steps):
        begin, end = max(0, step - back), min(length, step + shape.seq_length)
        front, tail = max(0, back - step), max(0, step + shape.seq_length - length)
        padded = np.pad(episode[begin:end], (front, tail), mode="edge")
        assert acted[row].tolist() == padded.tolist()
        assert observed[row].tolist() == padded[: shape.frame_stack].tolist()
        mask = [False] * front + [True] * (end - begin) + [False] * tail
        assert inside[row].tolist() == mask
        if not (shape.pad_frame_stack or shape.pad_seq_length):
            assert inside[row].all()


@pytest.mark.parametrize("length", [None, 0])
def test_without_a_length_all_windows_are_in_a_pass(length):
    assert windows_per_pass(np.array([3, 0, 70]), length).tolist() == [3, 0, 70]


@given(st.integers(1, 300), st.integers(1, 300))
def test_subsampled_windows_are_distinct_and_all_come_equally_often(count, wanted):
    taken = int(windows_per_pass(np.array([count]), wanted)[0])
    assert taken == min(count, wanted)
    hits = np.zeros(count, int)
    for offset in range(count):
        picked = picked_windows(np.arange(taken), count, taken, offset)
        assert np.all(np.diff(picked) > 0) and picked[0] >= 0 and picked[-1] < count
        hits[picked] += 1
    assert np.all(hits == taken)
