"""Time to quality: of the first checkpoint that reaches the target, as a ratio of the same seed."""

from __future__ import annotations

import os

import pytest

from robomimic_ddp.monitoring.records import evaluation, history
from scripts.bench import time_to_quality


def result(epoch: int, episodes: int, success: float) -> dict:
    same = {"kind": "result", "epoch": epoch, "weights": str(epoch), "env": "reach"}
    log = {"Success_Rate": success}
    return {**same, "episodes": episodes, "checkpoint": "a", "interval": None, "log": log}


@pytest.mark.parametrize(("target", "epoch"), [(0.9, 6), (0.5, 4), (0.95, None)])
def test_the_first_checkpoint_that_reaches_the_target_counts(target, epoch, tmp_path):
    """Of epoch 2 too few episodes were played."""
    (tmp_path / "models").mkdir()
    for number, (episodes, success) in {2: (10, 0.9), 4: (50, 0.6), 6: (50, 0.9)}.items():
        file = tmp_path / "models" / f"model_epoch_{number}.pth"
        file.touch()
        os.utime(file, (100.0 + number, 100.0 + number))
        evaluation.append(tmp_path, result(number, episodes, success))
    for number in range(1, 9):
        line = {"epoch": number, "phase": "train", "steps": 10, "seconds": 0.5, "log": {}}
        line |= {"samples": 160, "samples_per_second": 320.0}
        history.append(tmp_path, line)
    values = time_to_quality.reached(tmp_path, 90.0, 50, target)
    assert values["epoch"] == epoch and values["success"] == {2: 0.9, 4: 0.6, 6: 0.9}
    if epoch:
        expected = {"seconds": 10.0 + epoch, "training_seconds": epoch / 2, "steps": 10 * epoch}
        assert {name: values[name] for name in expected} == expected


def test_ratios_are_of_the_same_seed_and_need_both_runs():
    first, second, _ = time_to_quality.CASES
    rows = [
        {"case": case, "seed": seed, "epoch": 2, "seconds": s, "training_seconds": s, "steps": 8}
        for case, seed, s in ((first, 1, 100.0), (first, 2, 50.0), (second, 1, 50.0))
    ]
    rows.append({"case": second, "seed": 2, "epoch": None})
    _, _, alone, two, none = time_to_quality.table(rows)
    assert alone == f"| {first} | 2 of 2 | 75 (50 to 100) | 75 (50 to 100) | 8 (8 to 8) |  |"
    assert two.endswith(
        "| 1 of 2 | 50 (50 to 50) | 50 (50 to 50) | 8 (8 to 8) | 2.00 (2.00 to 2.00) |"
    )
    assert "0 of 0" in none
