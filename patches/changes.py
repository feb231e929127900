"""Apply: turns an examination into one all-or-nothing write; manifest.revert takes it back."""

from __future__ import annotations

import stat
from pathlib import Path

from robomimic_ddp.patches import manifest
from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.outcomes import AlreadyApplied, Examination
from robomimic_ddp.patches.writing import Change, remove_remnants, write_all


def apply(examination: Examination) -> None:
    """Writes the patches of an examination without problems, and the manifest before them. Without
    patches the manifest alone takes note of lines that the user has added or removed.
    """
    assert not examination.blocked, "a blocked examination must not be written"
    package = examination.host.package
    found = examination.findings
    held = {finding.path for finding in found if isinstance(finding.outcome, AlreadyApplied)}
    before = manifest.load(package)
    entries = manifest.record(before, examination.patches, held)
    texts = {name: examination.host.read(name) or b"" for name in entries}
    texts.update((patch.path, patch.after) for patch in examination.patches)
    entries = manifest.with_seams(entries, texts)
    if not examination.patches and entries == before:
        return
    changes = [Change(package / manifest.NAME, manifest.dump(entries), is_record=True)]
    for patch in examination.patches:
        path = examination.host.target(patch.path)
        mode = _mode_beside(path) if patch.before is None else None
        changes.append(Change(path, patch.after, mode))
    write_all(changes)


def clean(host: Host) -> None:
    """Removes what an apply or a revert that was killed has left beside the host's files."""
    files = (host.package / name for name in host.files(("*.py", "*/*.py")))
    remove_remnants({host.package, *(path.resolve().parent for path in files)})


def _mode_beside(path: Path) -> int:
    """Permission bits for an added file: those of a file beside it, never executable."""
    neighbour = next(iter(sorted(path.parent.glob("*.py"))), None)
    return stat.S_IMODE(neighbour.stat().st_mode) & 0o666 if neighbour else 0o644
