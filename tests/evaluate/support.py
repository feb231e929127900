"""Small checkpoints with environments, a pool that plays nothing, and the results of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from robomimic_ddp.commands.evaluate.workers import Task
from robomimic_ddp.monitoring.records import evaluation, history
from tests.checkpoint import small

CONFIG = {
    "experiment": {
        "rollout": {"n": 3, "rate": 50, "warmstart": 60},
        "additional_envs": ["stack"],
    },
    "train": {"data": [{"path": "/data/lift.hdf5"}, {"path": "x.hdf5", "eval": False}], "seed": 1},
}
META = {"env_name": "Lift", "type": 1, "env_kwargs": {}}
META_OF_DATASET = {**META, "lang": "dummy"}
NAMES = ("Success_Rate", "Return", "Horizon")


def write(path: Path, epoch: int | None = 7, weight: float = 0.0, **changes) -> Path:
    """Write a checkpoint that can be played in two environments; return `path`."""
    content = {
        "config": json.dumps(CONFIG),
        "env_metadata": [META_OF_DATASET, META_OF_DATASET],
        "variable_state": None if epoch is None else {"epoch": epoch},
        **changes,
    }
    return small.write(path, torch.full((2,), weight), **content)


class ScriptedPool:
    """Answers tasks by a text: S succeeded, F failed, D died."""

    log = SimpleNamespace(name="evaluation.log")
    answers = {
        "S": {"log": {"Success_Rate": 1.0, "Return": 1.0, "Horizon": 3.0}},
        "F": {"lost": "ValueError: NaN"},
        "D": {"lost": "its process ended with exit code 1", "died": True},
    }

    def __init__(self) -> None:
        self.script: Iterator[str] = iter("")

    def play(self, tasks: list[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        for task in tasks:
            yield task, self.answers[next(self.script)]


def of_training(run: Path) -> dict[int, list[float]]:
    """Epoch -> the statistics of the rollouts during training, split over two ranks."""
    lines = [line for line in history.read(run) if line["phase"] == "rollout"]
    return {line["epoch"]: [line["log"][name] for name in NAMES] for line in lines}


def of_evaluation(run: Path) -> dict[int, list[float]]:
    results = evaluation.results(run)
    return {result["epoch"]: [result["log"][name] for name in NAMES] for result in results}
