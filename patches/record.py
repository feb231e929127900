"""Apply and revert, and the record between them: enough to give back every byte without git.

`.robomimic_ddp.json`, in the host's package, has for each file the hash of what we wrote, the
original's bytes (none for an added file), and the names of our api that it uses: a run on several
ranks looks for them (`host_edits`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import zlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from robomimic_ddp.errors import PatchError
from robomimic_ddp.files import read_json, require_no_link
from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.outcomes import AlreadyApplied, Examination
from robomimic_ddp.patches.syntax.python import api_names
from robomimic_ddp.patches.writing import Change, remove_remnants, write_all

NAME = ".robomimic_ddp.json"
FORMAT = 1
_NOTE = (
    "Written by robomimic-ddp apply; robomimic-ddp revert needs it to give back the original files."
)


@dataclass(frozen=True)
class Entry:
    """One file: its bytes before the first edit (None: it was added), the hash of what we wrote
    last, and the names of our api in it.
    """

    original: bytes | None
    patched_sha256: str
    seams: tuple[str, ...] = ()

    def is_edited(self, current: bytes | None) -> bool:
        """Return whether the user has changed the file since: it has neither our bytes nor
        its own.
        """
        if current == self.original:
            return False
        return current is None or _digest(current) != self.patched_sha256


@dataclass(frozen=True)
class Reverted:
    """Files given back, files removed, and (edited file, copy of the user's version)."""

    restored: tuple[str, ...]
    removed: tuple[str, ...]
    copies: tuple[tuple[str, str], ...]


def apply(examination: Examination) -> None:
    """Write the patches of an examination without problems, and the record before them. Without
    patches only the record is written, if the user has added or removed lines of ours.
    """
    assert not examination.blocked, "a blocked examination must not be written"
    host = examination.host
    written = host.read(NAME)
    before = load(host.package)
    entries = _updated(before, examination)
    if not examination.patches and entries == before:
        return
    changes = [Change(host.package / NAME, written, _dump(entries), is_record=True)]
    for patch in examination.patches:
        path = host.target(patch.path)
        mode = _mode_of_neighbour(path) if patch.before is None else None
        changes.append(Change(path, patch.before, patch.after, mode))
    write_all(changes)


def revert(host: Host, force: bool = False, only: Container[str] | None = None) -> Reverted:
    """Give back the bytes of every recorded file (or those in `only`), and remove the added ones
    and, once no other file needs it, the record. Raises PatchError naming files edited since the
    apply; with `force` they are kept as `<file>.edited`.
    """
    record = host.read(NAME)
    recorded = load(host.package)
    entries = {name: item for name, item in recorded.items() if only is None or name in only}
    if not entries:
        _require_no_edits(host)
    others = {name: item for name, item in recorded.items() if name not in entries}
    contents = {name: host.read(name) for name in entries}
    edited = [name for name, entry in entries.items() if entry.is_edited(contents[name])]
    if edited and not force:
        listed = "\n".join(f"  {host.package / name}" for name in edited)
        raise PatchError(
            "these files were edited after robomimic-ddp apply, and a revert would lose your "
            f"edits. Nothing was written:\n{listed}\nTake your edits back first, or use --force, "
            "which keeps a copy of your version."
        )
    changes, copies, restored, removed = [], [], [], []
    for name, entry in entries.items():
        path, current = host.package / name, contents[name]
        if name in edited and current is not None:
            copy = _free_name(path)
            copies.append((name, copy.name))
            mode = stat.S_IMODE(path.stat().st_mode)
            changes.append(Change(copy, None, current, mode, is_record=True))
        if current != entry.original:
            (removed if entry.original is None else restored).append(name)
            changes.append(Change(host.target(name), current, entry.original))
    if entries:
        left = _dump(others) if others else None
        write_all([*changes, Change(host.package / NAME, record, left)])
    return Reverted(tuple(restored), tuple(removed), tuple(copies))


def edited_since(host: Host, entries: Mapping[str, Entry]) -> list[str]:
    """Return the recorded files that the user has edited since the apply."""
    return [name for name, entry in entries.items() if entry.is_edited(host.read(name))]


def clean(host: Host) -> None:
    """Remove what a killed apply or revert has left in the folders of the host's files."""
    files = (host.package / name for name in host.files(("*.py", "*/*.py")))
    remove_remnants({host.package, *(path.resolve().parent for path in files)})


def load(package: Path) -> dict[str, Entry]:
    """Return the record; empty if there is none. Raises PatchError if it is damaged or newer."""
    path = package / NAME
    try:
        require_no_link(path)
        content = read_json(path)
        if content["format"] != FORMAT:
            raise PatchError(
                f"{path} has format {content['format']}, this robomimic-ddp reads {FORMAT}: it was "
                "written by another version. Use that version, or git, to take the edits back."
            )
        return {name: _entry(name, item) for name, item in content["files"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise PatchError(
            f"{path} is damaged ({error!r}), so the original files are not known. Take the edits "
            "back with git (git checkout -- .), then delete that file."
        ) from error


def _entry(name: str, item: Mapping) -> Entry:
    if PurePosixPath(name).is_absolute() or {"..", ".git"} & {*PurePosixPath(name).parts}:
        raise ValueError(f"{name} is outside the package")
    original, data = item["original"], None
    if original is not None:
        data = zlib.decompress(base64.b64decode(original, validate=True))
    if data is not None and _digest(data) != item["original_sha256"]:
        raise ValueError(f"the original of {name} does not have its hash")
    return Entry(data, item["patched_sha256"], tuple(item["seams"]))


def _dump(entries: Mapping[str, Entry]) -> bytes:
    """Return the record's bytes; the same entries give the same bytes."""
    files = {}
    for name, entry in sorted(entries.items()):
        original = digest = None
        if entry.original is not None:
            original = base64.b64encode(zlib.compress(entry.original, 9)).decode("ascii")
            digest = _digest(entry.original)
        files[name] = {
            "original": original,
            "original_sha256": digest,
            "patched_sha256": entry.patched_sha256,
            "seams": list(entry.seams),
        }
    content = {"note": _NOTE, "format": FORMAT, "files": files}
    return (json.dumps(content, indent=1) + "\n").encode("utf-8")


def _updated(before: Mapping[str, Entry], examination: Examination) -> dict[str, Entry]:
    """Return the record after the patches. A file that the user has changed since the last apply
    keeps its entry, so that a revert will stop and name it.
    """
    findings = examination.findings
    patched = {item.path for item in findings if isinstance(item.outcome, AlreadyApplied)}
    entries = dict(before)
    for patch in examination.patches:
        entry, original = before.get(patch.path), patch.before
        if entry is not None and original not in (None, entry.original):
            if _digest(original) == entry.patched_sha256:
                original = entry.original
            elif patch.path in patched:
                continue
        entries[patch.path] = Entry(original, _digest(patch.after))
    texts = {name: examination.host.read(name) or b"" for name in entries}
    texts.update((patch.path, patch.after) for patch in examination.patches)
    return {
        name: Entry(entry.original, entry.patched_sha256, api_names(texts[name]))
        for name, entry in entries.items()
    }


def _require_no_edits(host: Host) -> None:
    """Raise PatchError if the host contains edits of ours, without a record of what was there."""
    files = host.files(("**/*.py",))
    edited = [name for name in files if b"robomimic_ddp" in (host.read(name) or b"")]
    if edited:
        raise PatchError(
            f"{host.package} contains edits of robomimic-ddp ({', '.join(edited)}), and no record "
            f"of the original files ({NAME}): a revert could not give back their bytes. Nothing "
            "was written. Take the edits back with git (git checkout, git revert, or git apply -R "
            "where they came from a patch), or put the record back."
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _free_name(path: Path) -> Path:
    names = (f"{path.name}.edited{number or ''}" for number in range(10_000))
    return next(copy for copy in map(path.with_name, names) if not copy.exists())


def _mode_of_neighbour(path: Path) -> int:
    """Return the permission bits of an added file: another file's there, never executable."""
    neighbour = next(iter(sorted(path.parent.glob("*.py"))), None)
    return stat.S_IMODE(neighbour.stat().st_mode) & 0o666 if neighbour else 0o644
