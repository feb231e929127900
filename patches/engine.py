"""Runs the fixers over a host: findings, problems, and the bytes that each file would have.

`examine` writes nothing. Only files that pass a cheap text filter are parsed, once for all fixers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches.edits import api_calls, definition
from robomimic_ddp.patches.host import training_files
from robomimic_ddp.patches.host.already_distributed import find_refusal, require_own_api_version
from robomimic_ddp.patches.host.hosts import MAIN, TRAIN_SCRIPTS, Host
from robomimic_ddp.patches.host.training_files import TRAIN, TRAIN_UTILS, Entry, Use
from robomimic_ddp.patches.outcomes import (
    TRAINING,
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


def examine(host: Host, fixers: Sequence[Fixer]) -> Examination:
    """Run `fixers` over the host as it is, and over the robomimic that it is built on. Raises
    ApiVersionError.
    """
    require_own_api_version(host)
    refusal = find_refusal(host)
    if refusal is not None:
        return Examination(host, (), refusal=refusal)
    base = examine(host.base, fixers) if host.base is not None else None
    if host.scripts and base is not None:  # all other edits are the base's
        fixers = [fixer for fixer in fixers if fixer.files == TRAIN_SCRIPTS]
    trainers = training_files.find(host)
    uses = training_files.uses(host, trainers)
    by_file: dict[str, list[Fixer]] = defaultdict(list)
    findings, patches = list(_places(trainers, fixers)), []
    for fixer in fixers:
        if fixer.adds:
            outcome, patch = _added(host, fixer)
            findings.append(Finding(fixer, patch.path, outcome))
            patches += [patch] if isinstance(outcome, Applied) else []
            continue
        paths = _files(host, fixer, trainers, uses)
        for path in paths:
            by_file[path].append(fixer)
        if not paths:
            words = " and ".join(repr(word.partition("|")[0]) for word in fixer.marks)
            reason = fixer.absent or f"no file with {words}"
            findings.append(Finding(fixer, fixer.files[0], NotPresent(reason)))
    for path, chosen in by_file.items():
        rollouts = (use for use in uses if use.fixer == "rollouts" and not use.in_base)
        called = frozenset(use.name for use in rollouts if use.file == path)
        outcomes, patch = patch_file(
            path, host.read(path) or b"", chosen, host.traits, called, _training(trainers, path)
        )
        findings += [Finding(fixer, path, outcome) for fixer, outcome in zip(chosen, outcomes)]
        patches += [patch] if patch.before != patch.after else []
    findings, spared = _spare(findings)
    findings.sort(key=lambda item: (item.path, item.outcome.lines or (0,), item.fixer.name))
    patches = sorted(
        (item for item in patches if item.path not in spared), key=lambda item: item.path
    )
    problems = _problems(host, findings, base)
    troubled = {finding.fixer.seam for finding in problems}
    half = (
        finding
        for finding in _half_patched(findings, uses, base)
        if finding.fixer.seam not in troubled
    )
    return Examination(
        host, tuple(findings), tuple(patches), problems=(*problems, *half), base=base
    )


def _places(trainers: Sequence[Entry], fixers: Sequence[Fixer]) -> Iterator[Finding]:
    """Yield the places that train and cannot be patched: they would use one rank only."""
    fixer = next((candidate for candidate in fixers if candidate.name == "distributed"), None)
    for entry in trainers if fixer else ():
        if entry.why:
            why = f"this place is not patched, and would train on one rank only: {entry.why}"
            yield Finding(fixer, entry.path, Unrecognised(entry.line, why, blocks=False))


def _files(
    host: Host,
    fixer: Fixer,
    trainers: Sequence[Entry],
    uses: Sequence[Use],
) -> list[str]:
    """Return the files that `fixer` looks at."""
    paths = host.files(fixer.files)
    if fixer.files == TRAIN_SCRIPTS:
        trains = {entry.path for entry in trainers if not entry.why}
        left = {entry.path for entry in trainers if entry.why} - trains
        paths = sorted({*paths, *trains} - left)
    if TRAIN_UTILS in fixer.files:  # what is true of it is true of others with helpers
        paths += [path for path in training_files.further_files(uses) if path not in paths]
    return [
        path
        for path in paths
        if fixer.may_apply_to(host.read(path) or b"", _training(trainers, path))
    ]


def _training(trainers: Sequence[Entry], path: str) -> str:
    """Return the name of the training function of the file `path`."""
    names = (entry.function for entry in trainers if entry.path == path and entry.function)
    return next(names, TRAIN)


def _spare(findings: Sequence[Finding]) -> tuple[list[Finding], set[str]]:
    """Leave alone scripts that cannot be patched where another one can, unless it is MAIN, which
    users start, or has edits of ours. Returns the findings, and the paths left alone.
    """
    scripts = {finding.path for finding in findings if finding.fixer.files == TRAIN_SCRIPTS}
    troubled = {
        finding.path for finding in findings if _blocks(finding) and finding.path in scripts
    }
    edited = {finding.path for finding in findings if isinstance(finding.outcome, AlreadyApplied)}
    trains = {
        finding.path
        for finding in findings
        if finding.fixer.name == "distributed" and _is_found(finding)
    }
    spared = troubled - edited - {MAIN} if trains - troubled else set()
    remaining, reported = [], set()
    for finding in findings:
        if finding.path not in spared:
            remaining.append(finding)
        elif _blocks(finding) and finding.path not in reported:
            reported.add(finding.path)
            why = f"this file is not patched, and would train on one rank: {finding.outcome.why}"
            remaining.append(
                replace(finding, outcome=replace(finding.outcome, why=why, blocks=False))
            )
    return remaining, spared


def _blocks(finding: Finding) -> bool:
    return isinstance(finding.outcome, Unrecognised) and finding.outcome.blocks


def patch_file(
    path: str,
    data: bytes,
    fixers: Sequence[Fixer],
    traits: frozenset[str] = frozenset(),
    called: frozenset[str] = frozenset(),
    training: str = TRAIN,
) -> tuple[list[Outcome], FilePatch]:
    """One file's outcomes, in the order of `fixers`, and its patch (before == after: no edit)."""
    try:
        source = Source(path, data, traits, called)
        outcomes = [_outcome(source, fixer, training) for fixer in fixers]
        edits = [
            edit for outcome in outcomes if isinstance(outcome, Applied) for edit in outcome.edits
        ]
        is_edited = any(isinstance(outcome, AlreadyApplied) for outcome in outcomes)
        lost_import = is_edited and source.api_import is None
        after = source.render(edits) if edits or lost_import else data
    except (SourceError, RecursionError) as error:
        is_deep = isinstance(error, RecursionError)
        line, reason = (0, "it is nested too deeply") if is_deep else (error.line, error)
        why = f"the file is left alone: {reason}"
        is_broken = isinstance(error.__cause__, SyntaxError)
        outcomes = [Unrecognised(line, why, "" if is_broken else fixer.by_hand) for fixer in fixers]
        return outcomes, FilePatch(path, data, data)
    return outcomes, FilePatch(path, data, after)


def confirm(examination: Examination, fixers: Sequence[Fixer]) -> Examination:
    """Return the examination of the patched text. Raises PatchError if that needs another edit."""
    patched = {patch.path: patch.after for patch in examination.patches}
    after = examine(replace(examination.host, patched=patched), fixers)
    if after.patches or after.blocked:
        named = ", ".join(patch.path for patch in after.patches) or "a seam"
        raise PatchError(
            f"the edits of {named} are not stable: applied again, they would change it again. "
            "This is a fault of robomimic-ddp, please report it with the file. Nothing was written."
        )
    return after


def _outcome(source: Source, fixer: Fixer, training: str) -> Outcome:
    """Return what one fixer answers about one file."""
    scope: Any = source.module
    if fixer.within:
        within = f"def {training}" if fixer.within == TRAINING else fixer.within
        scope = definition(source, within)
        if scope is None:
            named = within.replace("def ", "function ")
            return NotPresent(f"no {named} at top level")
    edits: list[Edit] = []
    done = [call for function in fixer.done for call in api_calls(source, scope, function)]
    for result in fixer.find(source, scope):
        if isinstance(result, Edit):
            edits.append(result)
        elif isinstance(result, NotPresent):
            return result
        elif isinstance(result, Unrecognised):
            return replace(result, by_hand=fixer.by_hand)
        else:
            done.append(result)
    nodes = [edit.node for edit in edits] or done
    lines = tuple(sorted({source.line(node) for node in nodes}))
    if edits:
        return Applied(tuple(edits), lines)
    return AlreadyApplied(lines) if done else NotPresent(fixer.missing)


def _added(host: Host, fixer: Fixer) -> tuple[Outcome, FilePatch]:
    """Return the outcome, and the patch that adds the file where it is `Applied`."""
    (path,) = fixer.files
    before, folder = host.read(path), path.rpartition("/")[0]
    if host.is_built_on_robomimic:
        reason = "it would start the robomimic that this package is built on: start its own scripts"
        return NotPresent(reason), FilePatch(path, None, b"")
    main = host.read(MAIN)
    if main is not None and b"def train(" not in main:
        return NotPresent(f"it would call train() of {MAIN}"), FilePatch(path, None, b"")
    neighbours = [file for file in host.files((f"{folder}/*.py",)) if file != path]
    crlf = any(b"\r\n" in (host.read(file) or b"") for file in neighbours)
    patch = FilePatch(path, None, fixer.adds.replace("\n", "\r\n" if crlf else "\n").encode())
    if before is None:
        missing = Unrecognised(0, f"the host has no {folder}/", fixer.by_hand)
        return Applied((), (1,)) if neighbours else missing, patch
    if b"robomimic_ddp" in before:
        return AlreadyApplied((1,)), patch
    reason = "the host has one, which is patched like its other train scripts"
    return NotPresent(reason), patch


def _problems(
    host: Host, findings: Sequence[Finding], base: Examination | None
) -> tuple[Finding, ...]:
    """Findings that forbid writing: unknown forms, and required seams found nowhere."""
    problems = [finding for finding in findings if _blocks(finding)]
    troubled = {finding.fixer.seam for finding in problems}
    required = [finding for finding in findings if finding.fixer.required]
    covered = {
        finding.fixer.seam for finding in (base.findings if base else ()) if _is_found(finding)
    }
    for seam in dict.fromkeys(finding.fixer.seam for finding in required):
        tried = [finding for finding in required if finding.fixer.seam == seam]
        if any(map(_is_found, tried)) or seam in troubled | covered:
            continue
        reasons = "; ".join(dict.fromkeys(getattr(item.outcome, "reason", "") for item in tried))
        by_hand = ", or ".join(dict.fromkeys(item.fixer.by_hand for item in tried))
        why = f"the host needs the area {seam!r}, which was not found: {reasons}"
        if host.is_built_on_robomimic and base is None:
            why = (
                f"{host.name} is built on robomimic, which has the area {seam!r}, and this "
                "Python cannot import robomimic"
            )
            by_hand = "run robomimic-ddp with the Python that trains, where robomimic is installed"
        problems.append(replace(tried[0], outcome=Unrecognised(0, why, by_hand)))
    return tuple(problems)


def _is_found(finding: Finding) -> bool:
    """Return whether the construct is there, and edited or to be edited."""
    return isinstance(finding.outcome, (Applied, AlreadyApplied))


def _half_patched(
    findings: Sequence[Finding], uses: Sequence[Use], base: Examination | None
) -> Iterator[Finding]:
    """Train scripts that are patched, with a helper that is not."""
    patched = {(finding.fixer.name, finding.path) for finding in findings if _is_found(finding)}
    of_base = base.findings if base else ()
    in_base = {(finding.fixer.name, finding.path) for finding in of_base if _is_found(finding)}
    fixers = {finding.fixer.name: finding.fixer for finding in findings}
    for use in uses:
        fixer = fixers.get(use.fixer)
        if fixer is None or ("distributed", use.script) not in patched:
            continue
        if (fixer.name, use.file) not in (in_base if use.in_base else patched):
            where = use.file or "a file outside the package"
            why = (
                f"the training function would be patched, and {use.name}, which it takes from "
                f"{where}, would not: each rank would do separately what all must do together"
            )
            yield Finding(fixer, use.script, Unrecognised(use.line, why, fixer.by_hand))
