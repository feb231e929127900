"""What the commands print: a table of edits, problems with what to do by hand, a patch."""

from __future__ import annotations

import difflib
import io
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from robomimic_ddp.patches.outcomes import (
    AlreadyApplied,
    Applied,
    Examination,
    FilePatch,
    Finding,
    NotPresent,
    Unrecognised,
)
from robomimic_ddp.terminal import table as aligned
from robomimic_ddp.terminal import wrapped

_WIDE = 140
"""Columns that the table needs."""
_WORDS = {
    Applied: "can be patched",
    AlreadyApplied: "patched",
    NotPresent: "not present",
    Unrecognised: "not recognised",
}
"""Which of status's classes an outcome is; whole hosts may be "already distributed"."""


def table(
    examination: Examination,
    fresh: Collection[tuple[str, str]] = (),
    width: int | None = None,
    absent: bool = True,
) -> str:
    """One line a finding: area (seam), edit (fixer), where ("utils/log_utils.py:21,40"), outcome.
    `fresh`: (fixer, file) applied just now. Within `width` columns, if it is small, without area.
    `absent`: also what is not present.
    """
    rows = [("AREA", "EDIT", "WHERE", "OUTCOME")]
    if examination.refusal is not None:
        rows += [
            ("process group", "-", f"{path}:{line}", f"already distributed: {way}")
            for path, line, way in examination.refusal.uses
        ]
    for finding in examination.findings:
        if isinstance(finding.outcome, NotPresent) and not absent:
            continue
        outcome = _WORDS[type(finding.outcome)]
        if (finding.fixer.name, finding.path) in fresh:
            outcome = "patched now"
        if isinstance(finding.outcome, NotPresent):
            outcome = f"{outcome}: {finding.outcome.reason}"
        elif isinstance(finding.outcome, Unrecognised) and finding not in examination.problems:
            outcome = f"{outcome}, left as it is: {finding.outcome.why}"
        elif finding.fixer.note and not isinstance(finding.outcome, Unrecognised):
            outcome = f"{outcome}; {finding.fixer.note}"
        lines = ",".join(str(line) for line in finding.outcome.lines)
        where = f"{finding.path}:{lines}" if lines else finding.path
        rows.append((finding.fixer.seam, finding.fixer.name, where, outcome))
    if width is not None and width < _WIDE:
        return "\n".join(_narrow(row[1:], width) for row in rows)
    return "\n".join(aligned(rows, None))


def _narrow(row: Sequence[str], width: int) -> str:
    """Fixer and place, and the outcome on their line, or below where it is longer."""
    name, where, outcome = row
    line = f"{name:<19}  {where:<32}"
    if len(line) + 2 + len(outcome) <= width:
        return f"{line}  {outcome}"
    return "\n".join([line.rstrip(), *wrapped(outcome, width, "    ")])


def problems(examination: Examination) -> str:
    """Return each problem as file:line, what was found, why it matters, what to do by hand."""
    if examination.refusal is not None:
        return f"{examination.host.package}: {examination.refusal}"
    package = examination.host.package
    lines = [*dict.fromkeys(_problem(package, finding) for finding in examination.problems)]
    if examination.base is not None and examination.base.blocked:
        name = examination.host.name
        lines.append(f"{name} is built on this robomimic:\n{problems(examination.base)}")
    return "\n".join(lines)


def left_alone(examination: Examination) -> list[str]:
    """Return each place that is named and not patched, as file:line and why."""
    return [
        f"{_place(examination.host.package, finding)}: {finding.outcome.why}"
        for finding in examination.findings
        if isinstance(finding.outcome, Unrecognised) and finding not in examination.problems
    ]


def unified_diff(examination: Examination) -> bytes:
    """Return the patches as `git apply` and `patch -p1` take them, paths from the host's root."""
    host = examination.host
    return b"".join(
        line
        for patch in examination.patches
        for line in _diff_lines(patch, host.target(patch.path).relative_to(host.root).as_posix())
    )


def _diff_lines(patch: FilePatch, name: str) -> Iterator[bytes]:
    tab = "\t" if " " in name else ""  # git's way to show where a name with spaces ends
    source = "new file mode 100644\n--- /dev/null\n"
    if patch.before is not None:
        source = f"--- a/{name}{tab}\n"
    yield os.fsencode(f"diff --git a/{name} b/{name}\n{source}+++ b/{name}{tab}\n")
    # Only \n ends a line, as in git: a form feed or a lone \r does not.
    before, after = (io.BytesIO(data or b"").readlines() for data in (patch.before, patch.after))
    # difflib.unified_diff would take the blank lines of long files for junk, and show them changed.
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes():
        old, new = _range(group[0][1], group[-1][2]), _range(group[0][3], group[-1][4])
        yield f"@@ -{old} +{new} @@\n".encode()
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                lines = [b" " + line for line in before[old_start:old_end]]
            else:
                lines = [b"-" + line for line in before[old_start:old_end]]
                lines += [b"+" + line for line in after[new_start:new_end]]
            for line in lines:
                yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _range(start: int, stop: int) -> str:
    """Return a hunk side's line and count: 1-based, but an empty one names the line before."""
    return f"{start + 1 if stop > start else start},{stop - start}"


def _problem(package: Path, finding: Finding) -> str:
    outcome, place = finding.outcome, _place(package, finding)
    if not outcome.by_hand:  # a fault of the whole file
        return f"{place}: {outcome.why}"
    return f"{place}: {finding.fixer.name}: {outcome.why}\n    by hand: {outcome.by_hand}"


def _place(package: Path, finding: Finding) -> str:
    path, line = os.path.normpath(package / finding.path), finding.outcome.where
    return f"{path}:{line}" if line else path
