"""Apply and revert: turns an examination, or a manifest, into one all-or-nothing write."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches import manifest
from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.outcomes import AlreadyApplied, Examination
from robomimic_ddp.patches.writing import Change, remove_remnants, write_all


@dataclass(frozen=True)
class Reverted:
    """Files given back, files removed, and (edited file, copy of the user's version)."""

    restored: tuple[str, ...]
    removed: tuple[str, ...]
    copies: tuple[tuple[str, str], ...]


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


def revert(host: Host, force: bool = False) -> Reverted:
    """Gives back the bytes of every file in the manifest, removes the added ones and the manifest.
    Raises PatchError naming files edited since the apply; with `force` they are kept as
    `<file>.edited`.
    """
    entries = manifest.load(host.package)
    if not entries:
        _require_no_edits(host)
    edited = [name for name, entry in entries.items() if _edited(host, name, entry)]
    if edited and not force:
        listed = "\n".join(f"  {host.package / name}" for name in edited)
        raise PatchError(
            "these files were edited after robomimic-ddp apply, and a revert would lose that. "
            f"Nothing was written:\n{listed}\nTake back your edits first, or use --force, which "
            "keeps a copy of your version."
        )
    changes, copies, restored, removed = [], [], [], []
    for name, entry in entries.items():
        path, present = host.package / name, host.read(name)
        if name in edited and present is not None:
            copy = _free_name(path)
            copies.append((name, copy.name))
            changes.append(Change(copy, present, stat.S_IMODE(path.stat().st_mode)))
        if present != entry.original:
            (removed if entry.original is None else restored).append(name)
            changes.append(Change(host.target(name), entry.original))
    if entries:
        write_all([*changes, Change(host.package / manifest.NAME, None)])
    return Reverted(tuple(restored), tuple(removed), tuple(copies))


def clean(host: Host) -> None:
    """Removes what an apply or a revert that was killed has left beside the host's files."""
    files = (host.package / name for name in host.files(("*.py", "*/*.py")))
    remove_remnants({host.package, *(path.resolve().parent for path in files)})


def _require_no_edits(host: Host) -> None:
    """Raises PatchError if the host contains edits of ours, without a record of what was there."""
    files = host.files(("**/*.py",))
    held = [name for name in files if b"robomimic_ddp" in (host.read(name) or b"")]
    if held:
        raise PatchError(
            f"{host.package} contains edits of robomimic-ddp ({', '.join(held)}), and no record of "
            f"the original files ({manifest.NAME}): a revert could not give back their bytes. "
            "Nothing was written. Take the edits back with git (git checkout, git revert, or "
            "git apply -R where they came from a patch), or put the record back."
        )


def _edited(host: Host, name: str, entry: manifest.Entry) -> bool:
    present = host.read(name)
    if present == entry.original:
        return False
    return present is None or manifest.digest(present) != entry.patched_sha256


def _free_name(path: Path) -> Path:
    names = (f"{path.name}.edited{number or ''}" for number in range(10_000))
    return next(place for place in map(path.with_name, names) if not place.exists())


def _mode_beside(path: Path) -> int:
    """Permission bits for an added file: those of a file beside it, never executable."""
    neighbour = next(iter(sorted(path.parent.glob("*.py"))), None)
    return stat.S_IMODE(neighbour.stat().st_mode) & 0o666 if neighbour else 0o644
