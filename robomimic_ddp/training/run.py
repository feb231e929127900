"""One training run: its plan, options and what was registered on the way, for the functions of
`api`.

Edited host lines are too short to pass these along (`DDPUtils.scale_lr(lr)`), so the run is held in
a context variable for exactly as long as the host's `train()` lasts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import robomimic_ddp
from robomimic_ddp import verify
from robomimic_ddp.checkpoint import RunRecord
from robomimic_ddp.config import env
from robomimic_ddp.config.host import host_edits
from robomimic_ddp.config.options import Options
from robomimic_ddp.config.planning.plan import RunPlan
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.distributed import atomic_files, group, signals
from robomimic_ddp.distributed.gradients import step_guard
from robomimic_ddp.monitoring import pictures
from robomimic_ddp.monitoring.records.run_files import RECORD
from robomimic_ddp.training.presets import Prepared
from robomimic_ddp.training.run_parts import Built, Output, Progress, Resume

FRAMES_UNKNOWN = {"frames_decoded": None, "frames_delivered": None, "frames_prefetched": None}


@dataclass
class Run:
    """The present run."""

    settings: Settings
    config: Any = field(default=None, repr=False)
    """The host's."""
    built: Built = field(default_factory=Built)
    resume: Resume = field(default_factory=Resume)
    steps: Prepared | None = None
    """How the model takes its steps; None before training."""
    guard: step_guard.StepGuard | None = None
    """Watches optimizers' steps on several ranks, once training begins."""
    weights_for_acting: Callable[[], Any] = nullcontext
    """Collective: the context in which sharded nets act (`fsdp.whole`)."""
    progress: Progress = field(default_factory=Progress)
    output: Output = field(default_factory=Output, repr=False)
    begun_in_main: AbstractContextManager | None = None
    """What ends a run that the host's `main()` has begun, until its `train()` takes it over."""
    stopper: signals.Stopper = field(default_factory=signals.Stopper)
    undo: ExitStack = field(default_factory=ExitStack)
    """What training has changed on the host's objects is put back when it is closed."""

    @property
    def options(self) -> Options:
        return self.settings.options

    @property
    def plan(self) -> RunPlan:
        return self.settings.plan

    @property
    def host(self) -> str:
        """Name and version of the code that trains, such as "robomimic 0.5.0"."""
        package = type(self.config).__module__.partition(".")[0]
        version = getattr(sys.modules.get(package), "__version__", "")
        return f"{package} {version}".strip()

    @property
    def trains_in_parallel(self) -> bool:
        """Whether nets are parallel, or optimizers average their gradients over ranks."""
        return bool(self.built.nets) or self.plan.several_ranks

    @property
    def lr_factor(self) -> float:
        """Factor of the configured learning rates, for the nets that are made so far."""
        # Nets that nobody wraps are those of small algorithms, far below where the rule changes.
        parameters = sum(
            p.numel() for net in self.built.nets for p in net.parameters() if p.requires_grad
        )
        return self.plan.lr_factor(parameters, self.settings.fine_tuning)

    def scale_lr(self, lr: float) -> float:
        """Return the learning rate for this plan; remember (before, after) for the printed plan."""
        scaled = lr * self.lr_factor
        self.built.learning_rates.append((lr, scaled))
        return scaled

    def begin_record(self, directory: Path, place: Mapping[str, Any] | None = None) -> None:
        """Main rank: writes `ddp.json` into the run directory, with the options, their sources and
        the plan. `place`: what a restart needs to find the directory again. Raises WriteError.
        """
        content = {
            **(place or {}),
            "version": robomimic_ddp.__version__,
            "host": self.host,
            **self.settings.record(),
            "learning_rates": self.built.learning_rates,
        }
        self.output.record = RunRecord(directory, content)
        with atomic_files.must_be_written(directory / RECORD):
            self.output.record.write()
        env.keep_run_note(directory)

    def note_settings(self) -> None:
        """Main rank: adds the completed settings to `ddp.json`."""
        if self.output.record is not None:
            self.output.record.add(**self.settings.record())

    def note_outcome(self, steps: int, proven: Mapping[str, bool | None]) -> None:
        """Collective: adds to `ddp.json` what the finished training did.

        `steps`: optimizer steps that the model has had; `frames_*`: camera frames of the train
        loaders over all ranks (null for data without counters; see RLDSLoader.settled_frames);
        `loss_not_finite_since`: the first epoch since the last start whose loss is NaN or
        infinite, or null; and
        `proven`, what `ddp.verify` has seen.
        """
        counted = group.gather_objects(_frames(self.built.loaders.get("train")))
        if self.output.record is None:
            return
        frames = {name: sum(rank[name] for rank in counted) for name in counted[0] or ()}
        broken = {"loss_not_finite_since": self.progress.broken_since}
        outcome = {**FRAMES_UNKNOWN, "steps": steps, **frames, **broken, **proven}
        self.output.record.add(learning_rates=self.built.learning_rates, outcome=outcome)


def _frames(loader: Any) -> dict[str, int] | None:
    loaders = getattr(loader, "loaders", [loader])  # of a host with several
    counts = [part.settled_frames() for part in loaders if hasattr(part, "settled_frames")]
    return {name: sum(count[name] for count in counts) for name in counts[0]} if counts else None


_current: ContextVar[Run | None] = ContextVar("robomimic_ddp_run", default=None)


def current() -> Run | None:
    """Return the run whose `train()` is executing, or None (evaluation scripts, notebooks)."""
    return _current.get()


def draw_into(logger: Any) -> None:
    """Pictures of the present run go to `logger`, the host's DataLogger."""
    run = current()
    if run is not None and group.is_main():
        run.output.pictures = pictures.Pictures(logger, skips_batch=run.resume.source is not None)


def facts() -> dict[str, Any]:
    """Return what a tracker should know of the present run in addition to the host's config; {}
    outside a run.
    """
    run = current()
    if run is None:
        return {}
    package = type(run.config).__module__.partition(".")[0]
    known = {
        "version": robomimic_ddp.__version__,
        **run.settings.record(),
        "git_commit": verify.commit(host_edits.package_folder(package)),
    }
    return {"robomimic_ddp": known}


@contextmanager
def made_current(run: Run) -> Iterator[None]:
    """For the block, `run` is the present run."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)
