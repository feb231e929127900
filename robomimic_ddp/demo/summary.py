"""What the demo's run did, in one flat dictionary: every value is read from what the run left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robomimic_ddp import history
from robomimic_ddp.errors import DataError

KEYS = (
    "mode",
    "backend",
    "world_size",
    "steps",
    "samples_per_step",
    "learning_rate",
    "first_loss",
    "last_loss",
    "success_before",
    "success_after",
    "frames_decoded",
    "frames_delivered",
    "samples_per_second",
    "gradients_equal",
    "noise_differs",
    "checkpoint",
    "curves",
)


def summarise(
    run_directory: Path, evaluation: Mapping[str, Any], checkpoint: Path, curves: Path
) -> dict[str, Any]:
    """The summary, with exactly KEYS in that order.

    Losses are means over the first and the last epoch, over all ranks and samples; samples per
    second are those of all training epochs together, over all ranks; `learning_rate` is the initial
    one after scaling. Raises DataError when the run has not come to its end.
    """
    values = {
        **trained(run_directory),
        **{key: evaluation[key] for key in ("success_before", "success_after")},
        "checkpoint": str(checkpoint),
        "curves": str(curves),
    }
    return {key: values[key] for key in KEYS}


def trained(run_directory: Path) -> dict[str, Any]:
    """What a finished training's record and history say: its plan, its outcome, losses and speed.

    Raises DataError when the run has not come to its end.
    """
    record = json.loads((run_directory / "ddp.json").read_text())
    if "outcome" not in record:
        raise DataError(
            f"{run_directory}/ddp.json holds no outcome: that training was cut short. Train again."
        )
    plan, epochs = record["plan"], history.read(run_directory)
    epochs = [line for line in epochs if line["phase"] == "train"]
    samples = sum(line["steps"] for line in epochs) * plan["samples_per_step"]
    return {
        **{key: plan[key] for key in ("mode", "backend", "world_size", "samples_per_step")},
        **record["outcome"],
        "learning_rate": record["learning_rates"][0][1],
        "first_loss": epochs[0]["log"]["Loss"],
        "last_loss": epochs[-1]["log"]["Loss"],
        "samples_per_second": samples / sum(line["seconds"] for line in epochs),
    }
