"""What scripts/gpu_check.sh reads of nvidia-smi, and what it says of a job that failed."""

from __future__ import annotations

import pytest

from scripts.gpu_check import machine, one_gpu, several_gpus
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


class Trainings:
    """Stands for a machine with GPUs; a training is its options and its policy."""

    cpu = False

    def train(self, *options, variant=machine.CROPS, **_):
        return options, variant


@pytest.mark.parametrize(
    "module, check", [(one_gpu, "options"), (several_gpus, "gradients_over_nccl")]
)
def test_what_is_compiled_is_compared_without_crops(module, check, monkeypatch):
    """It draws them on the GPU, and with them all later noise is another."""
    pairs = []
    monkeypatch.setattr(
        module, "near", lambda *pair_and_bound: pairs.append(pair_and_bound[:2]) or 0.0
    )
    getattr(module, check)(Trainings())
    compiled = [pair for pair in pairs if {"preset=max", "compile=true"} & {*pair[1][0]}]
    assert compiled and all(base == ((), machine.IMAGES) for base, _ in compiled)
    assert all(base[1] == trained[1] for base, trained in pairs)
