"""Estimates of memory: the figures that a user decides by."""

from __future__ import annotations

import pytest

from robomimic_ddp.config.planning import memory


@pytest.mark.parametrize(
    "parameters, shards, gpu, words",
    [
        (67_000_000, 4, None, "= 1.3 GB on each rank with one device or DDP; with FSDP over 4"),
        (67_000_000, 4, None, "over 4 ranks 335 MB and up to 335 MB for weights and gradients"),
        (10**9, 8, None, "1.0 B parameters x 20 bytes"),
        (10**9, 8, None, "worth it where DDP's is more than half of a GPU"),
        (10**9, 8, 24 * 10**9, "more than half of a GPU with 24 GB: ddp.mode=fsdp is worth it"),
        (10**9, 8, 80 * 10**9, "less than half of a GPU with 80 GB: ddp.mode=fsdp would cost"),
        (7 * 10**9, 2, 80 * 10**9, "Both are more than half of a GPU with 80 GB"),
        (11 * 10**9, 64, 80 * 10**9, "need 88 GB before it is sharded, more than a GPU's 80 GB"),
        (500, 2, None, "500 parameters x 20 bytes"),
    ],
)
def test_what_is_said(parameters, shards, gpu, words):
    assert words in memory.describe(parameters, shards, gpu)


def test_the_bounds():
    fits = memory.fits
    assert fits(10**9, 1, 40 * 10**9) and not fits(10**9, 1, 40 * 10**9 - 1)
    assert fits(10**9, 200, 10_200_000_000) and not fits(10**9, 200, 10_199_999_999)
    assert fits(10**9, 4, 20 * 10**9) and not fits(10**9, 4, 20 * 10**9 - 1)
    assert fits(10**9, 1, 32 * 10**9, 0) and not fits(10**9, 1, 47 * 10**9, 2)


@pytest.mark.parametrize(
    "averages, words", [(0, "16 bytes (weight, gradient, Adam's moments)"), (2, "24 bytes (weight")]
)
def test_averages_are_counted(averages, words):
    assert f"x {words}" in memory.describe(10**9, 4, averages=averages)
