"""The parts of a run: what the host has built, how far training is, and what the run writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robomimic_ddp.checkpoint import FoundRun, HostFiles, RunRecord, Writer
from robomimic_ddp.config import machine
from robomimic_ddp.config.planning.plan import RunPlan
from robomimic_ddp.monitoring.pictures import Pictures
from robomimic_ddp.monitoring.records.heartbeat import Heartbeat
from robomimic_ddp.monitoring.step_logs import EpochPart


@dataclass
class Built:
    """What the host has made through `api` before training begins."""

    nets: list[nn.Module] = field(default_factory=list)
    """What `api.parallel` returned."""
    loaders: dict[str, Any] = field(default_factory=dict)
    """Role ("train", "valid") -> loader; several train loaders are joined in one."""
    sharded_stream: bool = False
    """Whether the host's own RLDS pipeline is split over the ranks."""
    learning_rates: list[tuple[float, float]] = field(default_factory=list)
    """(configured, scaled) of each call of `api.scale_lr`."""
    checkpoints: list[dict] = field(default_factory=list)
    """Contents of the checkpoints that the host has read; released when training begins."""
    checked: set[str] = field(default_factory=set)
    """Main rank: data and checkpoint that `run_inputs.check_inputs` has validated."""


@dataclass
class Resume:
    """What this rank resumes; only `training/state/` changes it. `decide` finds the
    directory, and `saved_state` reads the state when the host makes its run directory.
    """

    source: FoundRun | None = None
    """The directory of the resumed run."""
    by_host: bool = False
    """Whether the host resumes by itself, from its own checkpoint."""
    restarts: int = 0
    """How often torchrun has started the ranks again after a failure."""
    config_before: bytes | None = None
    """Main rank: the config.json of that run, before the host overwrites it."""
    saved: dict[str, Any] | None = None
    """The saved state, until it is restored."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Saved variables of the host's train() (`api.restored`), with their values before training."""


@dataclass
class Progress:
    """How far training is on this rank."""

    part: EpochPart = field(default_factory=EpochPart)
    """The finished part of the current train epoch."""
    last_epoch: int | None = None
    """The last of the host's epoch loop, where that is known."""
    in_train_epoch: bool = False
    """Whether the host's `run_epoch` trains: then all ranks take the same steps."""
    in_rollouts: bool = False
    to_evaluate: Any = None
    """Main rank: an epoch of which `evaluate` needs a checkpoint that is not saved yet."""
    debugged: dict[str, int] = field(default_factory=lambda: {"steps": 0})
    """Train steps that `ddp.debug` has seen."""
    profiled: bool = False
    """Whether the epoch that `ddp.profile` is for has begun."""
    warned_of_waiting: bool = False
    """Whether the user was warned that ranks wait for data."""
    broken_since: Any = None
    """Main rank: the first epoch whose loss is NaN or infinite, where that ends no run."""


@dataclass
class Output:
    """What the run writes and prints. On ranks but the main one only heartbeats."""

    record: RunRecord | None = None
    """`ddp.json`, once the run directory is known."""
    writer: Writer = field(default_factory=Writer)
    """Writes states and the host's files while training continues."""
    host_files: HostFiles | None = None
    """Gives the host's files to `writer`, in the epoch loop, unless preset safe is chosen."""
    pictures: Pictures | None = None
    """Draws into the host's logs, where there are any."""
    heartbeat: Heartbeat | None = None
    """Writes what this rank is doing, once the run directory is known."""

    @property
    def directory(self) -> Path | None:
        """The run directory, once it is known."""
        return None if self.record is None else self.record.directory

    def start_heartbeat(self, directory: Path, plan: RunPlan) -> None:
        """Begins to write, in the run directory, what this rank is doing."""
        if self.heartbeat is None:
            # It is a thread, and a thread's current device is the first one.
            gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
            rank = (plan.rank, plan.world_size, plan.device)
            self.heartbeat = Heartbeat(directory, *rank, partial(_memory, gpu)).start()

    def end(self, error: BaseException | None) -> None:
        """Writes what waits, and how the run has ended on this rank: by `error`, or well."""
        self.writer.close()
        if self.heartbeat is not None:
            self.heartbeat.stop(error)


def _memory(gpu: int | None) -> int:
    """Bytes that torch has reserved on that GPU, else the peak memory of this process."""
    return machine.peak_memory() if gpu is None else torch.cuda.memory_reserved(gpu)
