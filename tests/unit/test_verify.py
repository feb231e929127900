"""Checksums see every bit and every position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.verify import checksum


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=40), st.data())
def test_one_changed_bit_changes_the_sum(values, data):
    tensor = torch.tensor(values)
    other = tensor.clone()
    index = data.draw(st.integers(0, len(values) - 1))
    other.view(torch.int32)[index] ^= 1 << data.draw(st.integers(0, 30))
    assert checksum(tensor) != checksum(other)


def test_order_counts_although_plain_sums_do_not_see_it():
    assert checksum(torch.tensor([1.0, 2.0])) != checksum(torch.tensor([2.0, 1.0]))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]
)
def test_every_dtype_and_odd_sizes(dtype):
    for size in (0, 1, 3, 5):
        tensor = torch.ones(size, dtype=dtype)
        assert checksum(tensor) == checksum(tensor.clone())
    changed = torch.ones(5, dtype=dtype)
    changed[4] = 0
    assert checksum(torch.ones(5, dtype=dtype)) != checksum(changed)


def test_chunks_add_up_to_the_whole(monkeypatch):
    tensor = torch.randn(1000)
    whole = checksum(tensor)
    monkeypatch.setattr("robomimic_ddp.verify.bits._CHUNK_CPU", 7)
    assert checksum(tensor) == whole


def test_views_are_read_in_their_own_order():
    matrix = torch.arange(6.0).reshape(2, 3)
    assert checksum(matrix.t()) == checksum(matrix.t().contiguous())


def test_a_slice_that_begins_at_an_odd_byte():
    base = torch.zeros(9, dtype=torch.uint8)
    assert checksum(base[1:9]) == checksum(base[:8].clone())
    base[8] = 1
    assert checksum(base[1:9]) != checksum(base[:8].clone())
