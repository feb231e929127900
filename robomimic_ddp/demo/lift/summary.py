"""What the Lift demo's runs did, in one dictionary: every value is read from what they left."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robomimic_ddp.demo import summary
from robomimic_ddp.errors import DataError

KEYS = (
    "mode",
    "backend",
    "world_size",
    "steps",
    "samples_per_step",
    "first_loss",
    "last_loss",
    "success_before",
    "success_after",
    "episodes",
    "episodes_per_rank",
    "gradients_equal",
    "noise_differs",
    "seconds",
    "checkpoint",
)
_ANNOUNCED = re.compile(r"rollouts: episodes of each environment over \d+ ranks: (.*)")
_SHARE = re.compile(r"rank (\d+): ([^;]*)")
_MANY = re.compile(r"\((\d+) episodes\)")
_RESULTS = re.compile(r"^Epoch \d+ Rollouts took .*\nEnv: .*\n(\{[^{}]*\})$", re.MULTILINE)


def summarise(untrained: Path, trained: Path, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The summary, with exactly KEYS in that order.

    Losses are means over the first and the last epoch; `success_*` are shares of all ranks' rollout
    episodes together; `episodes_per_rank` is what the host's rollout loop was given on each rank;
    `seconds` those of each step. Raises DataError for a run that was cut short.
    """
    episodes = json.loads((trained / "config.json").read_text())["experiment"]["rollout"]["n"]
    before, after = ((run / "logs" / "log.txt").read_text() for run in (untrained, trained))
    facts = summary.trained(trained)
    split = facts["world_size"] > 1
    values = {
        **facts,
        "success_before": success_rate(before),
        "success_after": success_rate(after),
        "episodes": episodes,
        "episodes_per_rank": episodes_per_rank(after) if split else {"rank 0": episodes},
        "seconds": {name: round(took, 1) for name, took in seconds.items()},
        "checkpoint": str(trained / "last.pth"),
    }
    return {key: values[key] for key in KEYS}


def success_rate(log: str) -> float:
    """The success rate of the last rollouts that the host's train loop printed into its log."""
    results = _RESULTS.findall(log)
    if not results:
        raise DataError(
            "the run's log holds no rollouts: experiment.rollout must be enabled, and its rate "
            "must divide train.num_epochs."
        )
    return float(json.loads(results[-1])["Success_Rate"])


def episodes_per_rank(log: str) -> dict[str, int]:
    """How many episodes each rank simulated, from the last rollouts in a run's log."""
    announced = _ANNOUNCED.findall(log)
    if not announced:
        raise DataError("the run's log names no rank's episodes: its rollouts were not split.")
    counts = {}
    for rank, listed in _SHARE.findall(announced[-1]):
        many = _MANY.search(listed)
        counts[f"rank {rank}"] = int(many[1]) if many else len(re.findall(r"\d+", listed))
    return counts
