"""Collectives of objects on real ranks."""

from __future__ import annotations

import pytest

from robomimic_ddp import group


def gathered(sizes):
    return group.gather_objects(bytes([group.rank()]) * sizes[group.rank()])


@pytest.mark.parametrize("sizes", [(0, 0), (1, 900), (985, 1016), (0, 5000), (3000, 40_000)])
def test_values_of_any_size_arrive_whole_and_in_rank_order(ranks, sizes):
    expected = [bytes([rank]) * size for rank, size in enumerate(sizes)]
    assert ranks.run(gathered, sizes) == [expected] * 2
