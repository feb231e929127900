"""What the commands print: a table of seams, the problems with what to do by hand, and JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from robomimic_ddp.patches.examination import Examination, Finding
from robomimic_ddp.patches.outcomes import AlreadyApplied, Applied, NotPresent, Unrecognised

_WORDS = {
    Applied: "to apply",
    AlreadyApplied: "in place",
    NotPresent: "not needed",
    Unrecognised: "PROBLEM",
}


def table(examination: Examination, fresh: Collection[tuple[str, str]] = ()) -> str:
    """One line a finding: seam, fixer, where, outcome. `fresh`: (fixer, file) applied just now."""
    rows = [("SEAM", "FIXER", "WHERE", "OUTCOME")]
    for finding in examination.findings:
        outcome = _WORDS[type(finding.outcome)]
        if (finding.fixer.name, finding.path) in fresh:
            outcome = "applied"
        if isinstance(finding.outcome, NotPresent):
            outcome = f"{outcome}: {finding.outcome.reason}"
        elif finding.fixer.note and not isinstance(finding.outcome, Unrecognised):
            outcome = f"{outcome}; {finding.fixer.note}"
        rows.append((finding.fixer.seam, finding.fixer.name, where(finding), outcome))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]])
        for row in rows
    )


def where(finding: Finding) -> str:
    """File and lines in the package ("utils/log_utils.py:21,40"); the file alone without lines."""
    lines = ",".join(str(line) for line in finding.outcome.lines)
    return f"{finding.path}:{lines}" if lines else finding.path


def problems(examination: Examination) -> str:
    """Each problem as file:line, what was found and why it matters, and what to do by hand."""
    if examination.refusal is not None:
        return f"{examination.host.package}: {examination.refusal}"
    return "\n".join(
        _problem(examination.host.package, finding) for finding in examination.problems
    )


def as_json(examination: Examination, manifest_files: Iterable[str]) -> str:
    """Everything that `status` knows, for programs."""
    refusal = examination.refusal
    content = {
        "host": str(examination.host.package),
        "state": examination.state,
        "seams": [_json_finding(finding) for finding in examination.findings],
        "problems": [_json_finding(finding) for finding in examination.problems],
        "refusal": refusal
        and {
            "found": list(refusal.found),
            "places": [{"file": path, "line": line} for path, line in refusal.places],
            "why": str(refusal),
        },
        "files_to_edit": [patch.path for patch in examination.patches],
        "files_in_manifest": sorted(manifest_files),
    }
    return json.dumps(content, indent=2)


def _problem(package: Path, finding: Finding) -> str:
    outcome = finding.outcome
    place = (
        f"{package / finding.path}:{outcome.where}"
        if outcome.where
        else str(package / finding.path)
    )
    return f"{place}: {finding.fixer.name}: {outcome.why}\n    by hand: {outcome.by_hand}"


def _json_finding(finding: Finding) -> dict:
    outcome = finding.outcome
    fields = {
        "seam": finding.fixer.seam,
        "fixer": finding.fixer.name,
        "required": finding.fixer.required,
        "file": finding.path,
        "lines": list(outcome.lines),
        "outcome": type(outcome).__name__,
    }
    for name in ("reason", "why", "by_hand"):
        if hasattr(outcome, name):
            fields[name] = getattr(outcome, name)
    if finding.fixer.note:
        fields["note"] = finding.fixer.note
    return fields
