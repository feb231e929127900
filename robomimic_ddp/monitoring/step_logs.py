"""Logs of one rank in an epoch, step by step, before they are averaged over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from robomimic_ddp.config import tree
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import RobomimicDDPError


def numbers_of(log: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a log, and the means of its arrays and tensors of numbers."""
    numbers = {}
    for key, value in log.items():
        if type(value) is float:  # nearly all; numpy would take ten times as long
            numbers[key] = value
            continue
        with suppress(TypeError, ValueError, RuntimeError):  # None, text, a sparse tensor
            if isinstance(value, torch.Tensor):  # numpy refuses gradients, GPUs and bfloat16
                value = value.detach().float().mean().item()
            numbers[key] = float(np.mean(value))
    return numbers


def _spreads_of(log: Mapping[str, float]) -> dict[str, float]:
    """Return the entries of a log that describe the values of one batch, as those of IQL do:
    "x/mean" with "x/max", "x/min", "x/std".
    """
    described = [key[: -len("mean")] for key in log if key.endswith("/mean")]
    names = [name + kind for name in described for kind in ("mean", "max", "min", "std")]
    return {name: log[name] for name in names if name in log}


def pooled(ranks: Sequence[list[list]]) -> list[list]:
    """Return the `BatchLogs.spreads` of the steps of all ranks together: as of one batch with all
    samples, where "x" has a value for each sample. The last step is the same on every rank.
    """
    steps = [[row for row in rows if row] for rows in zip_longest(*map(reversed, ranks))]
    return [
        [sum(samples for samples, _ in rows), {key: _pool(key, rows) for key in rows[0][1]}]
        for rows in reversed(steps)
    ]


def _pool(key: str, rows: list[list]) -> float:
    name, _, kind = key.rpartition("/")
    parts = [(samples, log[key], log[f"{name}/mean"]) for samples, log in rows if key in log]
    if kind in ("max", "min"):
        return (max if kind == "max" else min)(value for _, value, _ in parts)
    count = sum(samples for samples, _, _ in parts)
    mean = sum(samples * of_part for samples, _, of_part in parts) / count
    if kind == "mean":
        return mean
    inside = sum((samples - 1) * value**2 for samples, value, _ in parts if samples > 1)
    between = sum(samples * (of_part - mean) ** 2 for samples, _, of_part in parts)
    return math.sqrt((inside + between) / (count - 1)) if count > 1 else math.nan


class BatchLogs:
    """Logs of one rank in one epoch: per key, the sum over samples and their number."""

    def __init__(self) -> None:
        self.samples = 0
        self.totals: dict[str, list[float]] = {}
        self.spreads: list[list] = []
        """Samples and `_spreads_of` of each training step that logs some."""

    def see(self, step_log: dict[str, Any], batch: Any, is_training: bool = False) -> None:
        """Adds the log of a batch; takes the mean of an array, as the host does. What is not
        numbers is left to the host's log. is_training: the batches of all ranks are one step.
        """
        if batch is None:
            raise RobomimicDDPError(
                "run_epoch called model.log_info before model.process_batch_for_training, so the "
                "number of samples behind that log is unknown and it cannot be averaged over "
                "ranks. Call process_batch_for_training on each batch first, as robomimic does."
            )
        self.add_step(samples_in(batch), numbers_of(step_log), is_training)

    def add_step(self, samples: int, log: Mapping[str, float], is_training: bool = True) -> None:
        """Adds the log of a batch, numbers only."""
        self.add(samples, {key: (mean * samples, samples) for key, mean in log.items()})
        spreads = _spreads_of(log) if is_training else {}
        if spreads:
            self.spreads.append([samples, spreads])

    def add(self, samples: int, totals: Mapping[str, Sequence[float]]) -> None:
        """Adds sums of other steps, or of another rank."""
        self.samples += samples
        for key, others in totals.items():
            sums = zip(self.totals.get(key, (0.0, 0)), others)
            self.totals[key] = [first + second for first, second in sums]


class EpochPart:
    """The finished steps of one train epoch and their logs, to stop inside the epoch and resume.

    before: steps and samples (of all ranks) before the run was resumed; logs: the sums of several
    ranks' `BatchLogs`; step_logs: on one rank each step's log, for bitwise the host's mean; total:
    steps of an epoch that is a pass of its loader, None if the host's config sets them; after_step:
    called after each step; after_training: after the last step of the epoch. Both may raise.
    """

    def __init__(
        self,
        after_step: Callable[[], None] = lambda: None,
        after_training: Callable[[], None] = lambda: None,
    ) -> None:
        self.after_step, self.after_training = after_step, after_training
        self.begin()

    def begin(self) -> None:
        """Resets to no steps."""
        self.epoch: int | None = None
        self.steps, self.before = 0, (0, 0)
        self.total: int | None = None
        self.logs = BatchLogs()
        self.step_logs: list[dict[str, float]] = []

    def see(self, step_log: dict[str, Any], batch: Any, is_training: bool = True) -> None:
        """Records the log of a step, and its batch."""
        if group.world_size() == 1:
            self.step_logs.append(numbers_of(step_log))
        else:
            self.logs.see(step_log, batch, is_training)


def samples_in(batch: Any) -> int:
    """Return the number of samples in a host's batch: the length of its actions, else of its first
    array.

    `batch` is a nest of dicts, lists and tuples over arrays or tensors of shape [B, ...].
    """
    if isinstance(batch, dict) and "actions" in batch:
        batch = batch["actions"]
    sizes = (getattr(value, "shape", None) for value in tree.leaves(batch))
    shape = next(filter(None, sizes), None)
    if shape is None:
        raise RobomimicDDPError(
            f"a batch of type {type(batch).__name__} has no array with a batch dimension, so its "
            "samples cannot be counted for the average over ranks. Return arrays of shape [B, ...] "
            "from the dataset."
        )
    return int(shape[0])
