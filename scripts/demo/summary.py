"""What the demos' runs did, in flat dictionaries: every value is read from what the runs left; and
in words.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robomimic_ddp.errors import DataError
from robomimic_ddp.monitoring.records import history

KEYS = tuple(
    "mode backend world_size steps samples_per_step learning_rate first_loss last_loss "
    "success_before success_after frames_decoded frames_delivered samples_per_second "
    "gradients_equal noise_differs checkpoint curves".split()
)
LIFT_KEYS = tuple(
    "mode backend world_size steps samples_per_step first_loss last_loss success_before "
    "success_after episodes gradients_equal noise_differs seconds checkpoint".split()
)
_WORDS = """\
{success}
{trained}
{files}

See this run again: {program} watch --once {run}

Next, in the environment of your own codebase:
    pip install {checkout}
    robomimic-ddp diff ~/my_robomimic       # prints the edits, writes nothing
    robomimic-ddp apply ~/my_robomimic      # and `robomimic-ddp revert`
    torchrun --nproc_per_node=4 -m robomimic.scripts.train --config cfg.json
    robomimic-ddp plot RUN_DIR -o curves.png
{checkout}/README.md explains them, with pages for DROID and robomimic."""
_RESULTS = re.compile(r"^Epoch \d+ Rollouts took .*\nEnv: .*\n(\{[^{}]*\})$", re.MULTILINE)


def summarise(run: Path, evaluation: Mapping[str, Any], curves: Path) -> dict[str, Any]:
    """The block demo's summary, with exactly KEYS in that order."""
    values = {**trained(run), **evaluation, "curves": str(curves)}
    return {key: values[key] for key in KEYS}


def summarise_lift(before: Path, run: Path, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The Lift demo's summary, with exactly LIFT_KEYS in that order.

    `success_*` are shares of all ranks' rollout episodes together; `seconds` are those of each step
    that was done now.
    """
    values = trained(run)
    episodes = json.loads((run / "config.json").read_text())["experiment"]["rollout"]["n"]
    log = (run / "logs" / "log.txt").read_text()
    values |= {
        "success_before": success_rate((before / "logs" / "log.txt").read_text()),
        "success_after": success_rate(log),
        "episodes": episodes,
        "seconds": dict(seconds),
    }
    return {key: values[key] for key in LIFT_KEYS}


def trained(run: Path) -> dict[str, Any]:
    """What a finished training's record and history say. Raises DataError for an unfinished one.

    Losses are means over an epoch, over all ranks and samples; samples per second are those of all
    epochs and ranks together; `learning_rate` is the initial one after scaling.
    """
    record = json.loads((run / "ddp.json").read_text())
    if "outcome" not in record:
        raise DataError(f"{run}/ddp.json has no outcome: that training was cut short. Train again.")
    plan = record["plan"]
    epochs = [line for line in history.read(run) if line["phase"] == "train"]
    samples = sum(line["steps"] for line in epochs) * plan["samples_per_step"]
    return {
        **plan,
        **record["outcome"],
        "learning_rate": record["learning_rates"][0][1],
        "first_loss": epochs[0]["log"]["Loss"],
        "last_loss": epochs[-1]["log"]["Loss"],
        "samples_per_second": samples / sum(line["seconds"] for line in epochs),
        "checkpoint": str(run / "last.pth"),
    }


def success_rate(log: str) -> float:
    """The success rate of the last rollouts that the host's train loop printed into its log."""
    results = _RESULTS.findall(log)
    if not results:
        raise DataError(
            "the run's log has no rollouts: experiment.rollout must be enabled, and its rate "
            "must divide train.num_epochs."
        )
    return float(json.loads(results[-1])["Success_Rate"])


def in_words(root: Path, summary: Mapping[str, Any]) -> str:
    """What a demo under `root` has shown, where its files are, and what to do next."""
    run = Path(summary["checkpoint"]).parent
    ranks = summary["world_size"]
    trained = "One rank trained it" if ranks == 1 else f"{ranks} ranks trained it"
    trained += f" in {summary['steps']} steps of {summary['samples_per_step']} samples. "
    trained += f"Loss: {summary['first_loss']:.3g}, at the end {summary['last_loss']:.3g}."
    if summary["gradients_equal"] and summary["noise_differs"]:
        trained += "\nThey proved that their gradients are equal and that their noise differs."
    places = {
        "the policy before and after": root / "policy.gif",
        "curves": root / "curves.png",
        "checkpoint": Path(summary["checkpoint"]),
        "logs of all steps": root / "logs",
        "these numbers": root / "summary.json",
    }
    files = "\n".join(
        f"    {name + ':':29}{path}" for name, path in places.items() if path.exists()
    )
    program = Path(sys.executable).with_name("robomimic-ddp")
    before, after = (f"{summary['success_' + key]:.0%}" for key in ("before", "after"))
    success = f"The policy succeeds in {before} of new episodes before training, in {after} after."
    words = {"success": success, "trained": trained, "files": files, "run": run, "program": program}
    return _WORDS.format(**words, checkout=Path(__file__).resolve().parents[2])
