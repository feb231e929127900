"""The process's random streams: a captured state is the state, and forks leave no trace."""

from __future__ import annotations

import os
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
    state = rng.capture()
    torch.save(state, tmp_path / "state")
    expected = [draw() for _ in range(700)]
    rng.restore(torch.load(tmp_path / "state", weights_only=True))
    assert [draw() for _ in range(700)] == expected
    assert {state[name]["words"].dtype for name in ("numpy", "python")} == {torch.int64}


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


@pytest.mark.parametrize(
    "function, arguments, word",
    [
        ("seed_streams", (7, 1), 2083679833),
        ("seed_streams", (7, 2), 2083679834),
        ("seed_streams", (7, 1, 3), 3466196062),
        ("seed_streams", (2**32 + 7, 1), 2083679833),
        # Shifted: rank 89792 would have the main rank's.
        ("seed_streams", (157, 1), 958942),
        ("seed_streams", (2**32 + 157, 1), 958942),
        ("seed", (-7, 0, 1), 2771065010),
    ],
)
def test_the_random_numbers_of_a_seed_never_change(function, arguments, word):
    """Else a job that is repeated, or resumed on more ranks, draws other numbers."""
    getattr(rng, function)(*arguments)
    assert torch.initial_seed() == word


@pytest.mark.parametrize("in_group, saved", [(False, [0, 1]), (True, [1])])
def test_the_streams_of_a_ranks_own_gpu_are_saved_and_put_back(in_group, saved, monkeypatch):
    """Of all GPUs where one process uses them, by DataParallel."""
    streams = [torch.tensor([number], dtype=torch.uint8) for number in (0, 1)]
    fakes = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 1,
        "get_rng_state": lambda device: streams[device],
        "set_rng_state": lambda state, device: streams.__setitem__(device, state),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: in_group)
    state = rng.capture()
    assert [part.tolist() for part in state["cuda"]] == [[number] for number in saved]
    streams[:] = [torch.tensor([9], dtype=torch.uint8)] * 2
    rng.restore(state)
    assert [part.item() for part in streams] == [n if n in saved else 9 for n in (0, 1)]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert rng.capture()["cuda"] == []


def test_deterministic_algorithms_end_with_the_block(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that the test's end restores it
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with rng.deterministic_algorithms(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            assert not torch.backends.cudnn.benchmark
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)
