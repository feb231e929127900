"""What checks are, and how two trained policies are compared."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from scripts.gpu_check.machine import Failed, Machine, OutOfTime, Trained
from tests.hosts import run
from tests.runs import epoch_logs, flat, load

NEAR, ROUNDED, COMPRESSED, OTHER = 0.01, 0.3, 0.5, 0.7
"""Distances (`distance`) of policies that were trained in another order of sums, in 16 bits, and by
other gradients. The check `controls` shows each time that they tell these apart.
"""


@dataclass(frozen=True)
class Check:
    """`run` returns a finding, or raises Failed. needs: modules without which it is skipped."""

    name: str
    run: Callable[[Machine], str]
    gpus: int
    needs: tuple[str, ...]

    def lacking(self) -> list[str]:
        """The modules that are not installed, what the host imports among them."""
        needs = (*self.needs, *OURS)
        missing = [name for name in needs if importlib.util.find_spec(name) is None]
        return missing or (missing_of_host() if "robomimic" in self.needs else [])


@functools.cache
def missing_of_host() -> list[str]:
    """The modules that the host imports and that are not installed."""
    missing: list[str] = []
    while True:
        stand_ins = f"sys.modules.update({{name: MagicMock() for name in {missing}}})"
        begin = f"import sys; from unittest.mock import MagicMock; {stand_ins}"
        result = run(None, sys.executable, "-c", f"{begin}; import robomimic.scripts.train")
        new = re.findall(r"No module named '([\w.]+)'", result.stderr)[-1:]
        if not new or new[0] in missing:
            return sorted({name.partition(".")[0] for name in missing})
        missing += new


OURS = ("libcst", "omegaconf", "rich")
"""What robomimic-ddp itself needs besides torch."""
CHECKS: list[Check] = []
"""In the order in which they run, the strongest evidence first."""


def check(gpus: int = 1, needs: tuple[str, ...] = ("robomimic",)) -> Callable:
    """Registers a check for machines with `gpus` GPUs or more."""

    def register(function: Callable[[Machine], str]) -> Callable:
        CHECKS.append(Check(function.__name__, function, gpus, needs))
        return function

    return register


def moments(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The optimizers' first moments: sums over all steps of what the gradients were."""
    leaves = flat(load(checkpoint)["model"]["optimizers"])
    return {name: value.double() for name, value in leaves if name.endswith("/exp_avg")}


def distance(one: Path, two: Path) -> float:
    """The difference of two checkpoints' first moments, relative to the first one's: 0 for equal
    gradients in all steps, about 1.4 for unrelated ones.
    """
    first, second = moments(one), moments(two)
    if set(first) != set(second) or not first:
        raise Failed("the checkpoints have moments of other parameters")
    apart = sum(float((first[name] - second[name]).square().sum()) for name in first)
    return (apart / sum(float(value.square().sum()) for value in first.values())) ** 0.5


def averages_apart(one: Path, two: Path) -> float:
    """The difference of two checkpoints' averaged weights, relative to the first one's difference
    of averages and weights: 1 for averages that are those weights.
    """
    first, second = load(one)["model"], load(two)["model"]["ema"]
    if not first["ema"] or set(first["ema"]) != set(second or ()):
        raise Failed("the checkpoints have averages of other weights")

    def squares(other: Mapping[str, torch.Tensor]) -> float:
        return sum(
            float((average.double() - other[name].double()).square().sum())
            for name, average in first["ema"].items()
        )

    return (squares(second) / squares(first["nets"])) ** 0.5


def loss_of(trained: Trained) -> float:
    """The last epoch's train loss, as the host has logged it."""
    return max(
        (epoch, log["Loss"])
        for (kind, epoch), log in epoch_logs(trained.directory).items()
        if kind == "Train"
    )[1]


def each(parts: Iterable[str], run: Callable[[str], str]) -> str:
    """What `run` finds of each part. All are tried; raises Failed with all findings where one
    failed, and OutOfTime with those until then.
    """
    found, failed = [], False
    for part in parts:
        try:
            found.append(f"{part} {run(part)}")
        except Failed as error:
            found.append(f"{part} FAILED: {error}")
            failed = True
        except OutOfTime as error:
            raise OutOfTime(", ".join(found)) from error
    if failed:
        raise Failed(", ".join(found))
    return ", ".join(found)


def near(one: Trained, two: Trained, bound: float = NEAR) -> float:
    """Their distance. Raises Failed where it, or the relative difference of their losses, is beyond
    the bound.
    """
    apart = distance(one.checkpoint, two.checkpoint)
    losses = loss_of(one), loss_of(two)
    if not apart <= bound or abs(losses[0] - losses[1]) > bound * abs(losses[0]):
        raise Failed(
            f"moments differ by {apart:.2g} of their size, losses are {losses[0]:.6g} and "
            f"{losses[1]:.6g}; expected at most {bound:g}"
        )
    return apart
