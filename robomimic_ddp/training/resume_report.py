"""What a resumed run tells its user: what goes on, what has changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from robomimic_ddp import checkpoint
from robomimic_ddp.distributed import host_algo
from robomimic_ddp.errors import CheckpointError


def changes(run: Any, model: Any, saved: dict[str, Any], data: str) -> Iterable[str]:
    """What goes on and what has changed since the state was saved, a sentence each."""
    made = run.plan
    yield (
        f"resuming training from epoch {saved['epoch'] + 1}{_inside(saved)} "
        f"(save {saved['save_id'][:8]} in {run.resume.found.directory})"
    )
    yield data
    old, new = saved["world_size"], made.world_size
    if old != new:
        added = f"ranks {old} to {new - 1} begin" if new > old + 1 else f"rank {old} begins"
        ranks = f"{added} new random streams" if new > old else ""
        yield f"world size: {old} -> {new}" + (f"; {ranks}" if ranks else "")
    if saved["samples_per_step"] != made.samples_per_step:
        yield f"samples per step: {saved['samples_per_step']} -> {made.samples_per_step}"
    rates = [
        entry["lr"]
        for _, optimizer in host_algo.named_optimizers(model)
        for entry in optimizer.param_groups
    ]
    yield f"learning rate: {', '.join(f'{rate:g}' for rate in rates)}, as saved"
    configured = [list(pair) for pair in run.learning_rates]
    if configured != saved["learning_rates"]:
        yield (
            "learning rate: the present config and ranks would give "
            f"{', '.join(f'{after:g}' for _, after in configured)}; not applied, since a "
            "resumed learning rate is never changed silently"
        )
    if saved.get("export") != checkpoint.export_digest(run.resume.found.directory):
        yield (
            f"note: last.pth was not written together with save {saved['save_id'][:8]} (the "
            "run ended between the two, or the file was changed); the state alone is used"
        )


def another_run(directory: Path, differences: list[str]) -> CheckpointError:
    """The error where the saved weights would be trained on as something else."""
    lines = "".join(f"\n  {line}" for line in differences)
    return CheckpointError(
        f"the run in {directory} was another one:{lines}\nExpected the same normalisation, action "
        "and observation keys, and the same data where a pass is resumed in its middle: the saved "
        "weights mean nothing under others, and samples would be repeated and lost. To resume, "
        "give the run its own config and data (config.json there was left as it was). To train "
        f"these weights as what you ask for now, begin a new run: experiment.ckpt_path="
        f"{directory / 'last.pth'}, without resume."
    )


def _inside(saved: dict[str, Any]) -> str:
    inside = saved["inside"]
    done = "" if inside is None else f", after {inside['steps']} steps of it"
    return f"{done}, step {saved['steps']} of the run"
