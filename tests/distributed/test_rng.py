"""The process's random streams: a captured state is the state, and forks leave no trace."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import pytest
import torch

from robomimic_ddp.distributed import rng


def draw():
    """A number of each stream, Gaussian ones included: numpy and Python keep every second one."""
    return (
        torch.randn(3).tolist(),
        np.random.standard_normal(),
        random.gauss(0, 1),
        np.random.rand(),
        random.random(),
    )


@pytest.fixture(autouse=True)
def streams_left_alone():
    with rng.kept():
        yield


@pytest.mark.parametrize("drawn_before", [0, 1])
def test_a_restored_state_draws_alike(drawn_before, tmp_path):
    for _ in range(drawn_before):
        draw()
    torch.save(rng.capture(), tmp_path / "state")
    expected = [draw() for _ in range(700)]
    rng.restore(torch.load(tmp_path / "state", weights_only=True))
    assert [draw() for _ in range(700)] == expected


def test_a_fork_is_a_function_of_its_entropy_and_leaves_no_trace_even_if_it_fails():
    before = rng.capture()
    outside = draw()
    rng.restore(before)
    forks = []
    for entropy in ((7, 0, 1), (7, 1, 1), (7, 0, 2), (7, 0, 1), (-7, 0, 1)):
        with suppress(ZeroDivisionError), rng.forked(*entropy):
            forks.append(draw())
            raise ZeroDivisionError
    assert forks[0] == forks[3] and len({str(fork) for fork in forks}) == 4
    assert draw() == outside
