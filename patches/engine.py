"""Runs the fixers over a host: findings, problems, and the bytes that each file would have.

`examine` writes nothing. Only files that pass a cheap text filter are parsed, once for all fixers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches.edits import api_calls, definition
from robomimic_ddp.patches.host import entries
from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.host.refusal import find_refusal, require_own_api_version
from robomimic_ddp.patches.outcomes import (
    AlreadyApplied,
    Applied,
    Examination,
    FilePatch,
    Finding,
    Fixer,
    NotPresent,
    Outcome,
    Unrecognised,
)
from robomimic_ddp.patches.syntax.source import Edit, Source, SourceError


def examine(host: Host, fixers: Iterable[Fixer]) -> Examination:
    """Run `fixers` over the host as it is. Raises ApiVersionError."""
    require_own_api_version(host)
    refusal = find_refusal(host)
    if refusal is not None:
        return Examination(host, (), refusal=refusal)
    uses = entries.uses(host)
    by_file: dict[str, list[Fixer]] = defaultdict(list)
    findings, patches = [], []
    for fixer in fixers:
        if fixer.adds:
            outcome, patch = _added(host, fixer)
            findings.append(Finding(fixer, patch.path, outcome))
            patches += [patch] if isinstance(outcome, Applied) else []
            continue
        paths = host.files(fixer.files)
        if entries.TRAIN_UTILS in fixer.files:  # what is true of it is true of others with helpers
            paths += [path for path in entries.further_files(uses) if path not in paths]
        paths = [path for path in paths if fixer.may_apply_to(host.read(path) or b"")]
        for path in paths:
            by_file[path].append(fixer)
        if not paths:
            words = " and ".join(repr(word.partition("|")[0]) for word in fixer.marks)
            reason = fixer.absent or f"no file with {words}"
            findings.append(Finding(fixer, fixer.files[0], NotPresent(reason)))
    for path, chosen in by_file.items():
        outcomes, patch = patch_file(path, host.read(path) or b"", chosen, host.traits)
        findings += [Finding(fixer, path, outcome) for fixer, outcome in zip(chosen, outcomes)]
        patches += [patch] if patch.before != patch.after else []
    findings.sort(key=lambda one: (one.path, one.outcome.lines or (0,), one.fixer.name))
    patches.sort(key=lambda patch: patch.path)
    problems = _problems(findings)
    troubled = {finding.fixer.seam for finding in problems}
    half = (one for one in _half_patched(findings, uses) if one.fixer.seam not in troubled)
    return Examination(host, tuple(findings), tuple(patches), problems=(*problems, *half))


def patch_file(
    path: str, data: bytes, fixers: Sequence[Fixer], traits: frozenset[str] = frozenset()
) -> tuple[list[Outcome], FilePatch]:
    """One file's outcomes, in the order of `fixers`, and its patch (before == after: no edit)."""
    try:
        source = Source(path, data, traits)
    except SourceError as error:
        why = f"the file is left alone: {error}"
        outcomes = [Unrecognised(error.line, why, fixer.by_hand) for fixer in fixers]
        return outcomes, FilePatch(path, data, data)
    outcomes = [_outcome(source, fixer) for fixer in fixers]
    edits = [edit for one in outcomes if isinstance(one, Applied) for edit in one.edits]
    is_edited = any(isinstance(one, AlreadyApplied) for one in outcomes)
    lost_import = is_edited and source.api_import is None
    after = source.render(edits) if edits or lost_import else data
    return outcomes, FilePatch(path, data, after)


def confirm(examination: Examination, fixers: Iterable[Fixer]) -> Examination:
    """The examination of the patched text. Raises PatchError if that needs another edit."""
    patched = {patch.path: patch.after for patch in examination.patches}
    after = examine(replace(examination.host, patched=patched), fixers)
    if after.patches or after.blocked:
        named = ", ".join(patch.path for patch in after.patches) or "a seam"
        raise PatchError(
            f"the edits of {named} are not stable: applied again, they would change it again. "
            "This is a fault of robomimic-ddp, please report it with the file. Nothing was written."
        )
    return after


def _outcome(source: Source, fixer: Fixer) -> Outcome:
    """What one fixer answers about one file."""
    part: Any = source.module
    if fixer.within:
        part = definition(source, fixer.within)
        if part is None:
            named = fixer.within.replace("def ", "function ")
            return NotPresent(f"no {named} at top level")
    edits: list[Edit] = []
    done = [call for function in fixer.done for call in api_calls(source, part, function)]
    for found in fixer.find(source, part):
        if isinstance(found, Edit):
            edits.append(found)
        elif isinstance(found, NotPresent):
            return found
        elif isinstance(found, Unrecognised):
            return replace(found, by_hand=fixer.by_hand)
        else:
            done.append(found)
    nodes = [edit.node for edit in edits] or done
    lines = tuple(sorted({source.line(node) for node in nodes}))
    if edits:
        return Applied(tuple(edits), lines)
    return AlreadyApplied(lines) if done else NotPresent(fixer.missing)


def _added(host: Host, fixer: Fixer) -> tuple[Outcome, FilePatch]:
    """The outcome, and the patch that adds the file where it is `Applied`."""
    (path,) = fixer.files
    before, folder = host.read(path), path.rpartition("/")[0]
    neighbours = [one for one in host.files((f"{folder}/*.py",)) if one != path]
    crlf = any(b"\r\n" in (host.read(one) or b"") for one in neighbours)
    patch = FilePatch(path, None, fixer.adds.replace("\n", "\r\n" if crlf else "\n").encode())
    if before is None:
        missing = Unrecognised(0, f"the host has no {folder}/", fixer.by_hand)
        return Applied((), (1,)) if neighbours else missing, patch
    if b"robomimic_ddp" in before:
        return AlreadyApplied((1,)), patch
    reason = "the host has one, which is patched like its other train scripts"
    return NotPresent(reason), patch


def _problems(findings: list[Finding]) -> tuple[Finding, ...]:
    """Findings that forbid writing: unknown forms, and required seams found nowhere."""
    problems = [
        finding
        for finding in findings
        if isinstance(finding.outcome, Unrecognised) and finding.outcome.blocks
    ]
    troubled = {finding.fixer.seam for finding in problems}
    required = [finding for finding in findings if finding.fixer.required]
    for seam in dict.fromkeys(finding.fixer.seam for finding in required):
        tried = [finding for finding in required if finding.fixer.seam == seam]
        if seam not in troubled and all(isinstance(item.outcome, NotPresent) for item in tried):
            reasons = "; ".join(dict.fromkeys(item.outcome.reason for item in tried))
            by_hand = ", or ".join(dict.fromkeys(item.fixer.by_hand for item in tried))
            why = f"the host cannot do without the area {seam!r}, and it was not found: {reasons}"
            problems.append(replace(tried[0], outcome=Unrecognised(0, why, by_hand)))
    return tuple(problems)


def _half_patched(findings: list[Finding], uses: list[entries.Use]) -> Iterator[Finding]:
    """Train scripts that are patched, with a helper that is not."""
    kinds = (Applied, AlreadyApplied)
    patched = {(one.fixer.name, one.path) for one in findings if isinstance(one.outcome, kinds)}
    fixers = {finding.fixer.name: finding.fixer for finding in findings}
    for use in uses:
        fixer = fixers.get(entries.HELPERS[use.name])
        if fixer is None or ("distributed", use.script) not in patched:
            continue
        if (fixer.name, use.file) not in patched:
            where = use.file or "a file outside the package"
            why = (
                f"train() would be patched, and {use.name}, which it takes from {where}, would "
                "not: each rank would do alone what all do together"
            )
            yield Finding(fixer, use.script, Unrecognised(use.line, why, fixer.by_hand))
