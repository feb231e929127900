"""What an evaluation leaves in the run: its record, the best checkpoint, and the run's trackers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.commands.evaluate.checkpoints import BEST_SUCCESS, Checkpoint
from robomimic_ddp.config import env, tree
from robomimic_ddp.errors import DataError
from robomimic_ddp.monitoring import host_loggers
from robomimic_ddp.monitoring.records import evaluation
from robomimic_ddp.terminal import warn

HEAD = ("epoch", "environment", "episodes", "success", "95 %", "return", "horizon", "checkpoint")
_Z = 1.959964
"""Two-sided 95 % of the normal distribution."""


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """For the block, nobody else evaluates `run`. Raises DataError where somebody does, and OSError
    where nothing can be written.
    """
    with files.opened_to_write(run / evaluation.FILE_NAME) as file:
        try:
            is_ours = files.try_lock(file)
        except OSError as error:  # a file system without locks
            warn(f"{run} cannot be locked: {error}. Evaluate it once at a time.")
            is_ours = True
        if not is_ours:
            raise DataError(
                f"{run} is being evaluated by another process. Both would play the same episodes. "
                "Wait until it has ended, or stop it; what it has played is kept."
            )
        evaluation.drop_cut_line(run)
        yield


def wilson(successes: float, episodes: int) -> tuple[float, float]:
    """Return the 95 % interval of a success rate after Wilson (1927)."""
    rate, spread = successes / episodes, _Z**2 / episodes
    middle = (rate + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(rate * (1 - rate) / episodes + spread / (4 * episodes))
    return max(0.0, middle - half), min(1.0, middle + half)


def result(episodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the line of kind "result" for the episodes of one environment."""
    first = episodes[0]
    logs = [episode["log"] for episode in episodes]
    means = {name: sum(log[name] for log in logs) / len(logs) for name in logs[0]}
    rate = means.get(evaluation.SUCCESS)
    interval = None if rate is None else wilson(rate * len(logs), len(logs))
    same = {name: first[name] for name in ("epoch", "weights", "env")}
    counts = {"episodes": len(logs), "interval": interval}
    return {"kind": "result", **same, **counts, "log": means}


def cells(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of a result in the table."""
    log, interval = result["log"], result["interval"]
    rate = log.get(evaluation.SUCCESS)
    return (
        str(result["epoch"]),
        str(result["env"]),
        f"{result['episodes']}{_lost(result)}",
        "-" if rate is None else f"{rate:.1%}",
        "-" if not interval else f"{interval[0]:.1%} to {interval[1]:.1%}",
        *(f"{log[name]:.4g}" if name in log else "-" for name in ("Return", "Horizon")),
        str(result["checkpoint"]),
    )


def sentence(result: dict[str, Any]) -> str:
    """Return a result in words."""
    epoch, env, episodes, rate, interval, *numbers, _ = cells(result)
    return (
        f"epoch {epoch}, {env}: {rate} of {episodes} episodes "
        f"succeeded ({interval}), return {numbers[0]}, horizon {numbers[1]}"
    )


def _lost(result: dict[str, Any]) -> str:
    lost = result.get("lost")
    return f" ({len(lost)} left out)" if lost else ""


def keep_best(run: Path, evaluated: Checkpoint, copy: Path) -> None:
    """Make `copy` of the checkpoint that was just evaluated `best_success.pth`, if its mean success
    over its environments is the highest, and of equal ones its epoch. Those with less than half as
    many episodes as another do not count. The file itself may be replaced or removed later.
    """
    results = [line for line in evaluation.results(run) if evaluation.SUCCESS in line["log"]]
    most = max((line["episodes"] for line in results), default=0)
    rates: dict[tuple[int, str], list[float]] = {}
    for line in results:
        if 2 * line["episodes"] >= most:
            key = line["epoch"], line["weights"]
            rates.setdefault(key, []).append(line["log"][evaluation.SUCCESS])
    means = {key: (sum(of) / len(of), key[0]) for key, of in rates.items()}
    standing = means.get((evaluated.epoch, evaluated.weights))
    if standing is None or standing < max(means.values()):
        return
    try:
        os.replace(copy, run / BEST_SUCCESS)
    except OSError as error:
        warn(f"{run / BEST_SUCCESS} could not be written: {error}")


class Trackers:
    """TensorBoard's and W&B's logs of the run, where its config has them."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._writer: Any = None
        self._wandb: Any = None
        self._has_warned = False

    def log(self, checkpoint: Checkpoint, results: Sequence[dict[str, Any]]) -> None:
        """Log the results at the checkpoint's epoch, as the host does for its rollouts. What cannot
        be logged is a warning, once.
        """
        logging = tree.at(checkpoint.config, "experiment.logging")
        logging = logging if isinstance(logging, dict) else {}
        values = {
            f"Rollout/{name}/{result['env']}": value
            for result in results
            for name, value in result["log"].items()
        }
        with self._warning():
            if logging.get("log_tb"):
                self._tensorboard(values, checkpoint.epoch)
        with self._warning():
            if logging.get("log_wandb"):
                self._to_wandb(values, checkpoint.epoch, logging.get("wandb_proj_name"))

    @contextmanager
    def _warning(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # wandb raises its own kinds
            self._warn(error)

    def _warn(self, cause: Any) -> None:
        if not self._has_warned:
            warn(f"results are not in the run's TensorBoard or W&B: {cause}")
        self._has_warned = True

    def _tensorboard(self, values: dict[str, float], epoch: int) -> None:
        from tensorboardX import SummaryWriter

        self._drop_dead_writer()
        if self._writer is None:
            folder, settings = str(self.run / "logs" / "tb"), host_loggers.TENSORBOARD_SETTINGS
            self._writer = SummaryWriter(folder, filename_suffix=".evaluation", **settings)
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)

    def _drop_dead_writer(self) -> None:
        if host_loggers.close_if_dead(self._writer):
            self._writer = None
            self._warn("the thread that writes them has ended, its error is above")

    def _to_wandb(self, values: dict[str, float], epoch: int, project: str | None) -> None:
        import wandb

        if self._wandb is None:
            number = files.read_text(self.run / "logs" / host_loggers.WANDB_ID, 100).strip()
            settings = {"mode": env.wandb_mode(), "id": number, "resume": "allow"}
            with suppress(TypeError, ValueError):  # older ones have no shared runs
                shared = {"mode": "shared", "x_primary": False, "x_label": "evaluation"}
                settings["settings"] = wandb.Settings(**shared) if not settings["mode"] else None
            self._wandb = False  # if the next line fails: it may take minutes
            self._wandb = wandb.init(project=project, dir=str(self.run / "logs"), **settings)
            self._wandb.define_metric("Rollout/*", step_metric="epoch")
        if self._wandb:
            self._wandb.log({**values, "epoch": epoch})

    def close(self) -> None:
        """Write what is left."""
        with self._warning():
            self._drop_dead_writer()
            if self._writer is not None:
                self._writer.close()
        with self._warning():
            if self._wandb:
                self._wandb.finish()
