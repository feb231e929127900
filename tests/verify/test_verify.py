"""Checksums see every bit and every position."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.verify import checksum, checksums, digest, tensor_checksums


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=40), st.data())
def test_one_changed_bit_changes_the_sum(values, data):
    tensor = torch.tensor(values)
    other = tensor.clone()
    index = data.draw(st.integers(0, len(values) - 1))
    other.view(torch.int32)[index] ^= 1 << data.draw(st.integers(0, 30))
    assert checksum(tensor) != checksum(other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_every_dtype_and_odd_sizes(dtype):
    for size in (0, 1, 3, 5):
        tensor = torch.ones(size, dtype=dtype)
        assert checksum(tensor) == checksum(tensor.clone())
    changed = torch.ones(5, dtype=dtype)
    changed[4] = 0
    assert checksum(torch.ones(5, dtype=dtype)) != checksum(changed)


def plainly(tensor):
    """The sums as they are defined, in Python's integers."""
    words = tensor.view(torch.int32).tolist()
    weighted = sum(word * (0x9E3779B1 * place + 1) for place, word in enumerate(words))
    return tuple((value + 2**63) % 2**64 - 2**63 for value in (sum(words), weighted))


@pytest.mark.parametrize(
    "words",
    [tensor_checksums._SMALL, tensor_checksums._SMALL + 1, tensor_checksums._CHUNK_CPU + 1000],
)
def test_chunks_and_rows_add_up_to_the_whole(words):
    tensor = torch.randn(words)
    assert checksum(tensor) == plainly(tensor)
    with torch.device("meta"):  # a default device of the host
        assert checksum(tensor) == plainly(tensor)


def test_two_changed_signs_do_not_cancel():
    """As they would in sums of 64-bit words: these have one sign each."""
    tensor = torch.randn(2 * tensor_checksums._SMALL)
    other = tensor.clone()
    other[[1, 3 + tensor_checksums._ROW]] *= -1
    assert checksum(tensor) != checksum(other)


def test_tensors_that_share_memory_are_read_once(monkeypatch):
    read = []
    plain = tensor_checksums._words
    monkeypatch.setattr(
        tensor_checksums, "_words", lambda tensor: read.append(tensor) or plain(tensor)
    )
    net, other = torch.randn(4, 6), torch.randn(4, 6).bfloat16()
    sums = checksums([net, net, other, other, net.t(), net[:2], net.view(torch.int32)])
    parts = net, net, other, other, net.t(), net[:2], net
    assert sums == [checksum(part.clone()) for part in parts]
    assert len(read) == 5 + 7, "of the first two, one; and of the next two"


@pytest.mark.parametrize("begin", [1, 5])
def test_a_slice_that_begins_at_an_odd_byte(begin):
    base = torch.zeros(begin + 8, dtype=torch.uint8)
    assert checksum(base[begin:]) == checksum(base[:8].clone())
    base[-1] = 1
    assert checksum(base[begin:]) != checksum(base[:8].clone())


def test_digests_never_change():
    tensor, array = torch.arange(6.0).view(2, 3).t(), np.arange(6, dtype=np.int16).reshape(2, 3).T
    nest = {"tensors": [tensor, torch.zeros(0, 3)], 2: (array, np.float64(0.5), {}), None: "text"}
    assert digest(nest) == "a2c336531d769362ed0fb4450134829e"
