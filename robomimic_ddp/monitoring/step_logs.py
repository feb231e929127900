"""Logs of one rank in an epoch, step by step, before they are averaged over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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


class BatchLogs:
    """Logs of one rank in one epoch: per key, the sum over samples and their number."""

    def __init__(self) -> None:
        self.samples = 0
        self.totals: dict[str, list[float]] = {}

    def see(self, step_log: dict[str, Any], batch: Any) -> None:
        """Adds the log of a batch; takes the mean of an array, as the host does. What is not
        numbers is left to the host's log.
        """
        if batch is None:
            raise RobomimicDDPError(
                "run_epoch called model.log_info before model.process_batch_for_training, so the "
                "number of samples behind that log is unknown and it cannot be averaged over "
                "ranks. Call process_batch_for_training on each batch first, as robomimic does."
            )
        self.add_step(samples_in(batch), numbers_of(step_log))

    def add_step(self, samples: int, log: Mapping[str, float]) -> None:
        """Adds the log of a batch, numbers only."""
        self.add(samples, {key: (mean * samples, samples) for key, mean in log.items()})

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

    def see(self, step_log: dict[str, Any], batch: Any) -> None:
        """Records the log of a step, and its batch."""
        if group.world_size() == 1:
            self.step_logs.append(numbers_of(step_log))
        else:
            self.logs.see(step_log, batch)


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
