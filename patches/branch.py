"""`robomimic-ddp apply --branch NAME`: the edits as one commit on a new git branch, or nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches import record
from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.outcomes import Examination
from robomimic_ddp.patches.writing import Change, content, write_all
from robomimic_ddp.terminal import wrapped

_PROOF = (
    "every edited file compiles; what no edit touches is unchanged, byte for byte",
    "applied a second time, the edits change nothing",
    f"{record.NAME} has the bytes that each file had before and their hash, which "
    "`robomimic-ddp revert` restores",
)
_SHOWN = 10
"""Changed files that an error names."""
_COLUMNS = 72


def message(after: Examination, fresh: Collection[tuple[str, str]]) -> str:
    """Return the commit's message. after: the patched host; fresh: (edit, file) made just now."""
    lines = ["Train on several ranks with robomimic-ddp", ""]
    lines += ["Made by `robomimic-ddp apply`. What each edit does:", ""]
    for finding in after.findings:
        fixer = finding.fixer
        if (fixer.name, finding.path) in fresh:
            numbers = ",".join(str(line) for line in finding.outcome.lines)
            what = "an entry that takes key=value words, too" if fixer.adds else fixer.by_hand
            note = f" ({fixer.note})" if fixer.note else ""
            lines += _item(f"{finding.path}:{numbers} [{fixer.seam}, {fixer.name}]: {what}{note}")
    lines += ["", "How this was proven before the commit:", ""]
    lines += [line for text in _PROOF for line in _item(text)]
    lines += [""] + wrapped(
        "A training on several ranks proves at its start and after each epoch that the ranks have "
        "equal weights, and at its first step that gradients are the mean over ranks.",
        _COLUMNS,
    )
    return "\n".join(lines) + "\n"


def _item(text: str) -> list[str]:
    return wrapped(text, _COLUMNS, indent="  ", first="- ")


def require_new(host: Host, name: str) -> None:
    """Raise PatchError if a branch cannot have that name, or the host's repository has that branch.
    Asked before the host is examined, which takes seconds.
    """
    _git(host, "check-ref-format", "--branch", name)
    if _git(host, "branch", "--list", name):
        raise PatchError(
            f"a branch named {name!r} already exists. Nothing was written; choose another name."
        )


def commit(examination: Examination, name: str, text: str) -> str:
    """Make the edits of an examination without problems as one commit, with the message `text`, on
    the new branch `name`; return the commit's hash. Raises PatchError: branch and files are then
    as they were.
    """
    host, changes = examination.host, record.changes(examination)
    start = _start(host, changes)
    _switch(host, "--no-track", "--create", name)
    try:
        write_all(changes)
        # By force: what the repository ignores (*.json) may have the record's name.
        _git(host, "add", "--force", "--", *_paths(changes))
        _git(host, "commit", "--quiet", "--file=-", stdin=text)
        _require_unchanged(changes)
        return _git(host, "rev-parse", "--short", "HEAD").strip()
    except BaseException as error:
        left = _undo(host, changes, start, name)
        if left or isinstance(error, PatchError):
            state = left or "The branch was removed, and every file is as it was."
            raise PatchError(f"no commit was made on {name!r}: {error}\n{state}") from error
        raise


def _start(host: Host, changes: Sequence[Change]) -> list[str]:
    """Return the arguments of `git switch` that lead back. Raises PatchError unless git knows the
    files that change, and none has changes that are not committed.
    """
    changed = _git(host, "status", "--porcelain", "--untracked-files=no").splitlines()
    if changed:
        listed = "\n".join(f"  {line}" for line in changed[:_SHOWN])
        raise PatchError(
            f"{host.root} has uncommitted changes, but the branch must have only the edits. "
            f"Nothing was written:\n{listed}\nCommit them, or put them away with git stash, then "
            "run again."
        )
    known = [change for change in changes if change.before is not None and not change.is_record]
    _git(host, "ls-files", "--error-unmatch", "--", *_paths(known))
    commit = _git(host, "rev-parse", "--verify", "HEAD").strip()
    branch = _git(host, "branch", "--show-current").strip()
    return [branch] if branch else ["--detach", commit]


def _undo(host: Host, changes: Sequence[Change], start: list[str], name: str) -> str:
    """Return "", or what could not be put back."""
    try:
        write_all(list(_backwards(changes)))
        _git(host, "reset", "--quiet", _git(host, "rev-parse", start[-1]).strip())
        _switch(host, *start)
        _git(host, "branch", "--quiet", "--delete", "--force", name)
    except PatchError as error:
        return f"Not all of it could be undone: {error}"
    return ""


def _backwards(changes: Sequence[Change]) -> Iterator[Change]:
    """Yield what gives back the bytes, whatever a hook of the repository has written since."""
    for change in reversed(changes):
        present = content(change.path)
        if present != change.before:
            yield replace(change, before=present, after=change.before)


def _require_unchanged(changes: Sequence[Change]) -> None:
    for change in changes:
        if content(change.path) != change.after:
            raise PatchError(
                f"a hook of the repository has rewritten {change.path}, so that revert would not "
                "know its edits. Commit without the hook: robomimic-ddp apply, then git commit "
                "--no-verify."
            )


def _paths(changes: Sequence[Change]) -> list[str]:
    return [os.fspath(change.path.resolve()) for change in changes]


def _switch(host: Host, *arguments: str) -> None:
    """Change the branch, which changes no file: hooks have nothing to do."""
    _git(host, "-c", f"core.hooksPath={os.devnull}", "switch", "--quiet", *arguments)


def _git(host: Host, *arguments: str, stdin: str = "") -> str:
    """Return what git prints. Raises PatchError with git's reason."""
    command = ["git", "-C", os.fspath(host.package), "--literal-pathspecs", *arguments]
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise PatchError(f"git cannot be started ({error.strerror}): --branch needs it.") from error
    if done.returncode:
        action = next(word for word in arguments if word[0] != "-" and "=" not in word)
        reason = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise PatchError(f"git {action} was refused: {reason}")
    return done.stdout
