"""Logs of one rank in an epoch, step by step, before they are averaged over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from robomimic_ddp.config import tree
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import RobomimicDDPError


class BatchLogs:
    """Logs of one rank in one epoch: per key, the sum over samples and their number."""

    def __init__(self) -> None:
        self.samples = 0
        self.totals: dict[str, list[float]] = {}

    def see(self, step_log: dict[str, Any], batch: Any) -> None:
        """Adds the log of a batch; takes the mean of an array, as the host does."""
        if batch is None:
            raise RobomimicDDPError(
                "run_epoch called model.log_info before model.process_batch_for_training, so the "
                "number of samples behind that log is unknown and it cannot be averaged over "
                "ranks. Call process_batch_for_training on each batch first, as robomimic does."
            )
        samples = samples_in(batch)
        means = {key: float(np.mean(value)) for key, value in step_log.items()}
        self.add(samples, {key: (mean * samples, samples) for key, mean in means.items()})

    def add(self, samples: int, totals: Mapping[str, Sequence[float]]) -> None:
        """Adds sums of other steps, or of another rank."""
        self.samples += samples
        for key, more in totals.items():
            sums = zip(self.totals.get(key, (0.0, 0)), more)
            self.totals[key] = [one + other for one, other in sums]


class EpochPart:
    """The finished steps of one train epoch and their logs, to stop inside the epoch and resume.

    logs: the sums of several ranks' `BatchLogs`; step_logs: on one rank each step's log, for
    bitwise the host's mean; total: steps of an epoch that is a pass of its loader, None if the
    host's config sets them; after_step: called after each step; after_training: after the last step
    of the epoch. Both may raise.
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
        self.steps = 0
        self.total: int | None = None
        self.logs = BatchLogs()
        self.step_logs: list[dict[str, float]] = []

    def see(self, step_log: dict[str, Any], batch: Any) -> None:
        """Records the log of a step, and its batch."""
        if group.world_size() == 1:
            self.step_logs.append({key: float(np.mean(value)) for key, value in step_log.items()})
        else:
            self.logs.see(step_log, batch)


def samples_in(batch: Any) -> int:
    """Number of samples in a host's batch: the length of its actions, else of its first array.

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
