"""What a run has of the one that it resumes, and of its present epoch: one object of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from robomimic_ddp.checkpoint.run_dirs import Found
from robomimic_ddp.monitoring.step_logs import EpochPart


@dataclass
class Resume:
    """`run.resume`, of this rank. Nothing here is collective: `resume.decide` finds the directory,
    `resume.saved_state` reads the state where the host makes its run directory, and
    `state_saver.Keeper` puts it back and writes the next one.
    """

    found: Found | None = None
    """The directory that the run is resumed in."""
    config_before: bytes | None = None
    """Main rank: the config.json of that run, before the host writes it again."""
    saved: dict[str, Any] | None = None
    """The saved state, between reading it and putting it back."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Variables of the host's train() that are saved (`api.restored`), with what they are before
    training.
    """
    part: EpochPart | None = None
    """What is done of the present train epoch; None before the first."""
