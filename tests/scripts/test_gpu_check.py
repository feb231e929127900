"""What scripts/gpu_check.sh reads of nvidia-smi, and what it says of a job that failed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from robomimic_ddp.config.options import resolve
from robomimic_ddp.config.planning import parallel_mode
from scripts.gpu_check import checks, machine, several_gpus
from scripts.gpu_check.__main__ import left_of, outcome
from scripts.gpu_check.machine import Failed, OutOfTime
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


def test_the_budget_begins_with_the_script(monkeypatch):
    monkeypatch.setenv("GPU_CHECK_BEGAN", str(int(time.time()) - 40))
    assert left_of(560.0) == pytest.approx(520, abs=2)
    monkeypatch.delenv("GPU_CHECK_BEGAN")
    assert left_of(560.0) == pytest.approx(560)


def test_averages_are_compared_by_how_far_they_are_from_the_weights(tmp_path):
    """What only copies the weights is 1 away, whatever the size of a step is."""

    def checkpoint(name, ema):
        path = tmp_path / name
        torch.save({"model": {"nets": {"w": torch.ones(3)}, "ema": {"w": ema}}}, path)
        return path

    averaged = checkpoint("averaged", torch.full((3,), 0.999))
    for name, ema, apart in (("same", 0.999, 0.0), ("copied", 1.0, 1.0), ("half", 0.9995, 0.5)):
        other = checkpoint(name, torch.full((3,), ema))
        assert checks.averages_apart(averaged, other) == pytest.approx(apart, abs=1e-3)


@pytest.mark.parametrize("kind, prefix", [(Failed, "FAIL"), (OutOfTime, "skip")])
def test_what_was_found_before_is_not_lost(kind, prefix):
    """Of the parts that ended before the budget, or that another one's failure came before."""

    def run(part):
        if part == "b":
            raise kind("of b")
        return "well"

    def check(_):
        return checks.each("abc", run)

    plan = checks.Check("letters", check, 1, ())
    state, found = outcome(plan, machine.Machine(Path(), [], True))
    assert state == prefix and "a well" in found
    assert ("c well" in found and "b FAILED: of b" in found) is (kind is Failed)


def test_a_group_of_one_may_be_sharded_where_the_check_asks_for_it():
    """`sharded_over_one_rank` replaces the choice of the mode, and no other decision."""
    parallel_mode.require_shardable(resolve(file={"mode": "fsdp"}), 1, "cpu", None)
