"""One training run: its plan, options and what was registered on the way, for the functions of
`api`.

Edited host lines are too short to pass these along (`DDPUtils.scale_lr(lr)`), so the run is held in
a context variable for exactly as long as the host's `train()` lasts.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import robomimic_ddp
from robomimic_ddp import env, group, main_rank, options, plan, verify, wrap

logger = logging.getLogger(__name__)

_NOTES = "__robomimic_ddp_notes"
RECORD_NAME = "ddp.json"
FRAMES_UNKNOWN = {"frames_decoded": None, "frames_delivered": None, "frames_prefetched": None}
_SETTLING_SECONDS = 10.0
LEARNING_RATE_SUFFIX = "learning_rate.initial"


@dataclass(frozen=True)
class Notes:
    """What an entry point knows beside the host's config: the file's `ddp` section, and the command
    line's.
    """

    file_options: Mapping[str, Any] = field(default_factory=dict)
    command_line_options: Mapping[str, Any] = field(default_factory=dict)
    command_line_keys: tuple = ()


def attach_notes(config: Any, notes: Notes) -> None:
    """Keeps `notes` with the host's config, outside its dictionary: they never reach config.json or
    checkpoints.
    """
    object.__setattr__(config, _NOTES, notes)


def notes_of(config: Any) -> Notes:
    """The notes of `attach_notes`, or empty ones."""
    return getattr(config, "__dict__", {}).get(_NOTES, Notes())


@dataclass
class Run:
    """The present run. `nets` holds what `api.parallel` returned, `loaders` the train and valid
    loaders.
    """

    plan: plan.RunPlan
    options: options.ResolvedOptions
    seed: int
    fine_tuning: bool
    nets: list = field(default_factory=list)
    loaders: dict = field(default_factory=dict)
    learning_rates: list = field(default_factory=list)
    directory: Path | None = None
    record: dict = field(default_factory=dict)

    def scale_lr(self, lr: float) -> float:
        """The learning rate for this plan; remembers (before, after) for the printed plan."""
        parameters = sum(count_parameters(net) for net in self.nets)
        # Without a parallel net nothing is averaged over ranks, so there is nothing to scale for.
        scaled = lr * self.plan.lr_factor(parameters, self.fine_tuning) if self.nets else lr
        self.learning_rates.append((lr, scaled))
        return scaled

    def describe(self) -> str:
        """The block that is printed once before training."""
        lines = [self.plan.describe()]
        lines += filter(
            None, (plan.describe_lr(*pair) for pair in dict.fromkeys(self.learning_rates))
        )
        return "\n".join(lines)

    def write_record(self, directory: Path) -> None:
        """Main rank: `ddp.json` beside the host's config.json, with the options, their sources and
        the plan.
        """
        self.directory = directory
        self.record = {
            "version": robomimic_ddp.__version__,
            "options": asdict(self.options.values),
            "sources": dict(self.options.sources),
            "plan": asdict(self.plan),
            "learning_rates": self.learning_rates,
        }
        self._save_record()

    def write_outcome(self, steps: int, proven: Mapping[str, bool | None]) -> None:
        """Collective: adds to `ddp.json` what the finished training did.

        `steps`: optimizer steps that the model has had; `frames_*`: camera frames of the train loaders over
        all ranks (null for data without counters), decoded without those of batches made ahead,
        which are `frames_prefetched`; and `proven`, what `ddp.verify` has seen.
        """
        counted = group.gather_objects(frame_counts(self.loaders.get("train")))
        if self.directory is None:
            return
        frames = {name: sum(rank[name] for rank in counted) for name in counted[0] or ()}
        self.record["learning_rates"] = self.learning_rates
        self.record["outcome"] = {**FRAMES_UNKNOWN, "steps": steps, **frames, **proven}
        self._save_record()

    def _save_record(self) -> None:
        with main_rank.atomic_open(self.directory / RECORD_NAME) as file:
            file.write(json.dumps(self.record, indent=2) + "\n")


def frame_counts(loader: Any) -> dict[str, int] | None:
    """Frames of an RLDS train loader, as `Run.write_outcome` names them; None for other loaders.

    Waits until no batch is half decoded. One that stays so is counted as decoded.
    """
    if not hasattr(loader, "frames_decoded"):
        return None
    deadline = time.monotonic() + _SETTLING_SECONDS
    while time.monotonic() < deadline:
        if loader.frames_decoded == loader.frames_delivered + loader.frames_prefetched:
            break
        time.sleep(0.05)
    ahead = loader.frames_prefetched
    return {
        "frames_decoded": loader.frames_decoded - ahead,
        "frames_delivered": loader.frames_delivered,
        "frames_prefetched": ahead,
    }


def count_parameters(net: nn.Module) -> int:
    """Number of trainable scalars of `net`."""
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)


_current: ContextVar[Run | None] = ContextVar("robomimic_ddp_run", default=None)


def current() -> Run | None:
    """The run whose `train()` is executing, or None (evaluation scripts, notebooks)."""
    return _current.get()


@contextmanager
def start(config: Any, use_cuda: bool, fine_tuning: bool = False) -> Iterator[Run]:
    """Collective under a launcher: plans the run, joins the process group, and leaves it on a clean
    end.

    `config` is the host's; `use_cuda` whether the host chose a CUDA device.
    """
    launch = env.read_launch_env()
    notes = notes_of(config)
    resolved = options.resolve(notes.command_line_options, launch.option_texts, notes.file_options)
    made = plan.make_plan(
        launch,
        resolved,
        visible_gpus=torch.cuda.device_count(),
        use_cuda=use_cuda,
        batch_size=config.train.batch_size,
        lr_on_command_line=any(
            key.endswith(LEARNING_RATE_SUFFIX) for key in notes.command_line_keys
        ),
    )
    run = Run(made, resolved, int(config.train.seed), fine_tuning)
    token = _current.set(run)
    try:
        if made.mode != "ddp":
            yield run
            return
        with group.process_group(made.backend, made.timeout_seconds):
            if resolved.values.verify:
                _require_same_job(config, run)
            yield run
    finally:
        _current.reset(token)


def _require_same_job(config: Any, run: Run) -> None:
    """Collective: the same code, options and host config on every rank, before anything is built
    from them.
    """
    items = {"robomimic_ddp version": robomimic_ddp.__version__, "torch version": torch.__version__}
    items.update(
        (f"option {name}", repr(value)) for name, value in asdict(run.options.values).items()
    )
    items.update((f"config {key}", repr(value)) for key, value in _flat("", dict(config)))
    verify.require_equal(
        "at start", items, "Start every rank with the same code, config and options."
    )


def _flat(prefix: str, tree: Mapping) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def parallelise(net: nn.Module) -> nn.Module:
    """`net`, made parallel by the present run's mode; unchanged outside a run and on one device."""
    run = current()
    if run is None or run.plan.mode == "single":
        if run is not None:
            run.nets.append(net)
        return net
    run.nets.append(wrap.parallelise(net, run.plan.mode, wrap.ddp_options(run.options.values)))
    return net


def seed_streams(seed: int, rank: int) -> None:
    """Gives ranks above 0 random streams of their own, reproducible from (seed, rank); rank 0 keeps
    the host's.

    Called after construction, so that weights start equal while noise, timesteps and augmentation
    differ.
    """
    if rank == 0:
        return
    words = np.random.SeedSequence([seed % 2**32, rank]).generate_state(4)
    torch.manual_seed(int(words[0]) << 32 | int(words[1]))  # CPU and all CUDA devices
    np.random.seed(int(words[2]))
    random.seed(int(words[3]))


def share_cores(ranks_on_node: int) -> None:
    """Holds torch to this rank's share of the node's cores.

    Hosts ask for two threads a process. Where ranks have less than that, threads wait for each
    other in busy loops: two ranks on two cores then took several times as long for a step.
    """
    torch.set_num_threads(min(torch.get_num_threads(), env.share_of_cores(ranks_on_node)))
