"""The state of a resume, and of the current epoch: one object of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from robomimic_ddp.checkpoint.run_search import Found
from robomimic_ddp.monitoring.step_logs import EpochPart


@dataclass
class Resume:
    """`run.resume`, of this rank. `resume.decide` finds the directory, `resume.saved_state` reads
    the state when the host makes its run directory, and `StateSaver` restores it and writes the
    next one.
    """

    found: Found | None = None
    """The directory of the resumed run."""
    config_before: bytes | None = None
    """Main rank: the config.json of that run, before the host overwrites it."""
    saved: dict[str, Any] | None = None
    """The saved state, until it is restored."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Saved variables of the host's train() (`api.restored`), with their values before training."""
    part: EpochPart | None = None
    """The finished part of the current train epoch; None before the first."""
