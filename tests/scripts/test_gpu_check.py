"""What scripts/gpu_check.sh reads of nvidia-smi, and what it says of a job that failed."""

from __future__ import annotations

import pytest

from scripts.gpu_check import machine, several_gpus
from tests.gpu.job import uuids_of
from tests.hosts import Result

ROWS = "12, GPU-a\n12, GPU-b\n13, GPU-a\n13, GPU-a\n[N/A], [N/A]\nNo running processes found\n"


def test_gpus_of_each_process():
    assert uuids_of(ROWS, [12, 13, 14]) == [["GPU-a", "GPU-b"], ["GPU-a"], []]


@pytest.mark.parametrize(
    ("of_ranks", "is_well"),
    [
        ([[["a"], []], [["b"]]], True),
        ([[["a"]], [["a"]]], False),
        ([[["a"], ["a"]], [["b"]]], False),
        ([[["a", "b"]], [["b"]]], False),
        ([[["a"]], [[]]], False),
    ],
)
def test_each_rank_has_a_gpu_and_what_it_started_none(of_ranks, is_well):
    assert several_gpus.one_gpu_each(of_ranks) is is_well


def test_the_place_of_an_error_is_named():
    """One process's traceback is on standard output."""
    text = 'Traceback\n  File "a.py", line 3, in f\n    x\nRuntimeError: called a sync\n'
    result = Result(1, text, "", (), False, 0.0)
    expected = 'ended with 1: RuntimeError: called a sync File "a.py", line 3, in f'
    assert machine.end_of(result) == expected
