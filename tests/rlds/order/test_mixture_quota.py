"""Shares of a mixture: exact batches, true to the weights, found again at any place."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.data.rlds.order.mixture_quota import Quotas

weights = st.lists(st.floats(0.001, 10), min_size=1, max_size=6)
sizes = st.integers(1, 70)


@given(weights, sizes)
def test_every_batch_is_full_and_shares_follow_the_weights(weights, size):
    quotas, given_so_far = Quotas(weights, size), np.zeros(len(weights))
    for batch in range(100):
        quota = quotas.of(batch)
        assert quota.sum() == size and (quota >= 0).all()
        given_so_far += quota
        due = quotas.weights * size * (batch + 1)
        assert np.abs(given_so_far - due).max() < 2


@given(weights, sizes, st.integers(0, 300))
def test_shares_resume_where_they_were_left(weights, size, batches):
    whole = Quotas(weights, size)
    before = [int(n) for n in sum((whole.of(b) for b in range(batches)), np.zeros(len(weights)))]
    resumed = Quotas(weights, size, before)
    for batch in range(20):
        assert resumed.of(batch).tolist() == whole.of(batches + batch).tolist()


large_weights = st.lists(st.floats(0.05, 2), min_size=1, max_size=6)
"""The windows of a small share are a hundred thousand batches apart, which takes seconds."""


@given(large_weights, sizes, st.integers(0, 120), st.integers(0, 60))
def test_groups_say_which_windows_make_a_batch(weights, size, first, count):
    quotas = Quotas(weights, size)
    for number in range(len(weights)):
        row = [batch for batch in range(40) for _ in range(int(quotas.of(batch)[number]))]
        codes = quotas.groups(number, 0, len(row)).tolist()
        assert len(set(codes)) == len(set(row)) and sorted(codes) == codes
        for code in set(codes):
            assert codes.count(code) == Quotas.group_size(code)
        assert (
            quotas.groups(number, first, count).tolist()
            == (quotas.groups(number, 0, first + count).tolist()[first:])
        )


def test_windows_of_a_tiny_share_are_found_many_batches_ahead():
    """A block plans thousands of windows of each dataset, whatever its share."""
    quotas = Quotas([0.999, 0.001], 8, [5, 3])
    batch = quotas.groups(1, 0, 100) >> 20
    assert np.array_equal(np.diff(batch), np.full(99, 125))
    whole = [quotas.before(int(number) + 1).tolist() for number in batch[[0, 50, 99]]]
    assert [tiny for _, tiny in whole] == [3 + 1, 3 + 51, 3 + 100]
    assert [sum(both) for both in whole] == [8 + 8 * (int(n) + 1) for n in batch[[0, 50, 99]]]


def test_a_long_run_remembers_some_thousand_batches():
    """Each dataset of a mixture has a copy of the table, in two processes."""
    quotas, by_window = (Quotas([3, 1], 4, [6, 2]) for _ in range(2))
    for batch in range(40_000):
        assert quotas.of(batch).tolist() == [3, 1]
        assert by_window.groups(1, batch, 1).tolist() == [batch << 20 | 1]
    assert quotas.before(40_000).tolist() == [6 + 120_000, 2 + 40_000]
    assert max(len(quotas._table), len(by_window._table)) < 10_000


def test_a_data_set_that_has_given_too_much_waits():
    """As after a resume with other weights: no share is below nothing, and batches are full."""
    assert Quotas([1, 1, 1], 4, [10, 0, 0]).of(0).tolist() == [0, 2, 2]
    single = Quotas([1, 1, 1], 1, [10, 0, 0])
    batches = np.array([single.of(batch) for batch in range(21)])
    assert (batches.sum(1) == 1).all() and (batches >= 0).all()
    assert batches[:20].sum(0).tolist() == [0, 10, 10]
