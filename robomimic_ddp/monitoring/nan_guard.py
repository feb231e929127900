"""Stops at a loss of NaN or infinity; names the rank and the sample.

Checks numbers that the host has already fetched; data is searched only after a failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from robomimic_ddp import files
from robomimic_ddp.config import tree
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError, LossError, RobomimicDDPError
from robomimic_ddp.monitoring.step_hooks import LOSS, StepHook
from robomimic_ddp.monitoring.step_logs import numbers_of

MOST_OVERFLOWS = 20
"""Consecutive steps that fp16 may skip: torch halves its scale, initially 2**16, at each."""


class Guard(StepHook):
    """Raises LossError or DataError on the rank with the first loss that is NaN or infinite.

    may_overflow (fp16): steps that overflowed are left out of the log, up to MOST_OVERFLOWS in a
    row. done_before: steps of the epoch before it was resumed.
    """

    place = "loss guard"

    def __init__(
        self, loader: Any, epoch: Any, may_overflow: bool = False, done_before: int = 0
    ) -> None:
        self.loader, self.epoch, self.steps = loader, epoch, done_before
        self.overflows_left = self.most_overflows = MOST_OVERFLOWS if may_overflow else 0

    def batch(self, batch: Any) -> None:
        actions = batch.get("actions") if isinstance(batch, dict) else None
        if isinstance(actions, torch.Tensor) and len(actions) == 0:
            raise DataError(
                f"{self._here()}: the batch is empty, and its loss would be NaN. The loader's "
                "batch sampler or the dataset's collate function dropped every sample: return "
                "full batches on every rank."
            )

    def step(self, step_log: dict[str, Any], batch: Any) -> dict[str, Any]:
        self.steps += 1
        loss = broken_loss(step_log)
        if loss is not None:
            broken = self._broken_places(batch)
            if broken or not self.overflows_left:
                raise self._broken_loss(loss, broken)
        return self._without_overflows(step_log) if self.most_overflows else step_log

    def _without_overflows(self, step_log: Any) -> Any:
        """`step_log` without overflowed values, which would spoil the mean. Gradients may overflow
        under a finite loss; that step is skipped too.
        """
        numbers = numbers_of(step_log)
        finite = {
            key: value
            for key, value in step_log.items()
            if key not in numbers or math.isfinite(numbers[key])
        }
        if len(finite) == len(step_log):
            self.overflows_left = self.most_overflows
            return step_log
        if not self.overflows_left:
            odd = ", ".join(sorted(set(step_log) - set(finite)))
            raise LossError(
                f"{self._here()}: fp16 has skipped {self.most_overflows} steps in a row, since "
                f"{odd} overflowed each time: training makes no progress. Use "
                "ddp.precision=bf16 or fp32, a lower learning rate, or train.max_grad_norm."
            )
        self.overflows_left -= 1
        return type(step_log)(finite)

    def _broken_loss(self, loss: float, broken: str) -> RobomimicDDPError:
        where = f"{self._here()}: the loss is {loss} at step {self.steps}"
        if broken:
            return DataError(f"{where}: the batch has {broken}")
        return LossError(
            f"{where}, though all numbers of its batch are finite: the training diverged, and "
            "every later checkpoint would be useless. Continue from an earlier checkpoint with a "
            "lower learning rate, a longer warm-up, or train.max_grad_norm."
        )

    def _broken_places(self, batch: Any) -> str:
        """Return the batch's keys with NaN or infinity, and where the first is; "" for none."""
        keys = [
            key
            for key, value in tree.named(batch, "/")
            if isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and not bool(torch.isfinite(value).all())
        ]
        if not keys:
            return ""
        where = _place_of(self.loader, keys[0])
        return (
            f"NaN or infinity in {', '.join(keys)}{where}. Training on it ends in NaN: repair "
            "or remove these episodes."
        )

    def _here(self) -> str:
        return f"rank {group.rank()} of {group.world_size()}, epoch {self.epoch}"


def broken_loss(log: Mapping[str, Any]) -> float | None:
    """Return the first loss in a log that is NaN or infinite, or None: that named so or, where a
    host logs none under that name (IQL), a number whose name ends so.
    """
    names = [LOSS] if LOSS in log else [key for key in log if key.endswith("loss")]
    losses = numbers_of({key: log[key] for key in names}).values()
    return next((loss for loss in losses if not math.isfinite(loss)), None)


def _place_of(loader: Any, key: str) -> str:
    """Return where the first bad number is: file, episode, step, key; "" without an HDF5 file."""
    dataset = getattr(loader, "dataset", None)
    for part in getattr(dataset, "datasets", None) or [dataset]:
        path, episodes = getattr(part, "hdf5_path", None), getattr(part, "demos", None)
        if path is None or episodes is None:
            continue
        places = [key]
        if key == "actions":  # the batch's actions are these, concatenated
            places = list(getattr(part, "action_keys", None) or places)
        with suppress(OSError):  # the file was moved, or its disk fails
            for name, place, step in _bad_steps(path, episodes, places):
                return f" (first in {path}: {name}, step {step}, {place!r})"
    return ""


def _bad_steps(path: str, episodes: list, places: list[str]) -> Iterator[tuple[str, str, int]]:
    import h5py

    with h5py.File(files.regular(path), "r") as file:
        for name in episodes:
            for place in places:
                stored = file.get(f"data/{name}/{place}")
                if stored is None or stored.dtype.kind != "f":
                    continue
                bad = ~np.isfinite(stored[()])
                if bad.any():
                    yield str(name), place, int(np.argwhere(bad)[0][0])
