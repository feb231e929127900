"""Shares of a mixture: exact batches, true to the weights, found again at any place."""

from __future__ import annotations

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.data.rlds.order.mixture_quota import Quotas

weights = st.lists(st.floats(0.001, 10), min_size=1, max_size=6)
sizes = st.integers(1, 70)


@given(weights, sizes)
def test_every_batch_is_full_and_shares_follow_the_weights(weights, size):
    quotas = Quotas(weights, size)
    for batch in range(1, 101):
        quota = quotas.next()
        assert sum(quota) == size and min(quota) >= 0
        due = np.array(quotas.weights) * size * batch
        assert np.abs(quotas.before - due).max() < 2


@given(weights, sizes, st.integers(0, 300))
def test_shares_resume_where_they_were_left(weights, size, batches):
    whole = Quotas(weights, size)
    for _ in range(batches):
        whole.next()
    resumed = Quotas(weights, size, whole.before)
    assert [resumed.next() for _ in range(20)] == [whole.next() for _ in range(20)]


@given(weights, sizes, st.integers(0, 30))
def test_sizes_are_those_of_the_batches_with_a_dataset(weights, size, batches):
    quotas, ahead = Quotas(weights, size), Quotas(weights, size)
    rows = [ahead.next() for _ in range(40)]
    for number in range(len(weights)):
        expected = [row[number] for row in rows[batches:] if row[number]]
        after = sum(row[number] for row in rows[:batches])
        assert [*islice(quotas.sizes(number, after), len(expected))] == expected
    assert quotas.before == [0] * len(weights)


def test_windows_of_a_tiny_share_are_found_many_batches_ahead():
    quotas = Quotas([0.999, 0.001], 8, [5, 3])
    assert [*islice(quotas.sizes(1), 100)] == [1] * 100


def test_a_data_set_that_has_given_too_much_waits():
    """As after a resume with other weights: no share is below nothing, and batches are full."""
    assert Quotas([1, 1, 1], 4, [10, 0, 0]).next() == [0, 2, 2]
    single = Quotas([1, 1, 1], 1, [10, 0, 0])
    batches = np.array([single.next() for _ in range(21)])
    assert (batches.sum(1) == 1).all() and (batches >= 0).all()
    assert batches[:20].sum(0).tolist() == [0, 10, 10]
