"""What is known of a host after the fixers have looked at it, and before anything is written."""

from __future__ import annotations

from dataclasses import dataclass

from robomimic_ddp.patches.hosts import Host
from robomimic_ddp.patches.outcomes import AlreadyApplied, Fixer, Outcome
from robomimic_ddp.patches.refusal import Refusal


@dataclass(frozen=True)
class Finding:
    """What one fixer answered about one file (`path` relative to the package)."""

    fixer: Fixer
    path: str
    outcome: Outcome


@dataclass(frozen=True)
class FilePatch:
    """A file's bytes before (None: no such file) and after; `path` relative to the package."""

    path: str
    before: bytes | None
    after: bytes


@dataclass(frozen=True)
class Examination:
    """All that is known of a host before anything is written. `problems` forbid writing."""

    host: Host
    findings: tuple[Finding, ...]
    patches: tuple[FilePatch, ...] = ()
    refusal: Refusal | None = None
    problems: tuple[Finding, ...] = ()

    @property
    def blocked(self) -> bool:
        """Whether the host cannot be retrofitted as it is."""
        return self.refusal is not None or bool(self.problems)

    @property
    def state(self) -> str:
        """One of "already distributed", "blocked", "patched", "partly patched" or "not patched"."""
        if self.blocked:
            return "already distributed" if self.refusal else "blocked"
        kinds = {type(finding.outcome) for finding in self.findings}
        if not self.patches and AlreadyApplied in kinds:
            return "patched"
        return "partly patched" if AlreadyApplied in kinds else "not patched"
