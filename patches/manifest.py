"""Record what was edited in the host, and restore it: `revert` gives back every byte without git.

`.robomimic_ddp.json` has, per file, the hash of what we wrote, the original's bytes (or none), and
the names of our api that it uses: a run on several ranks looks for them (`host_seams`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.outcomes import FilePatch
from robomimic_ddp.patches.syntax.python import api_names
from robomimic_ddp.patches.writing import Change, write_all

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
    seams: tuple[str, ...]


@dataclass(frozen=True)
class Reverted:
    """Files given back, files removed, and (edited file, copy of the user's version)."""

    restored: tuple[str, ...]
    removed: tuple[str, ...]
    copies: tuple[tuple[str, str], ...]


def digest(data: bytes) -> str:
    """SHA-256 of `data`, in hex."""
    return hashlib.sha256(data).hexdigest()


def load(package: Path) -> dict[str, Entry]:
    """The manifest; empty if there is none. Raises PatchError if it is damaged or newer."""
    path = package / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
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


def dump(entries: dict[str, Entry]) -> bytes:
    """The manifest's bytes; the same entries give the same bytes."""
    files = {
        name: {
            "original": _pack(entry.original),
            "original_sha256": None if entry.original is None else digest(entry.original),
            "patched_sha256": entry.patched_sha256,
            "seams": list(entry.seams),
        }
        for name, entry in sorted(entries.items())
    }
    content = {"note": _NOTE, "format": FORMAT, "files": files}
    return (json.dumps(content, indent=1) + "\n").encode("utf-8")


def record(
    entries: dict[str, Entry], patches: Iterable[FilePatch], held_edits: Iterable[str]
) -> dict[str, Entry]:
    """The manifest after `patches`. `held_edits`: files that held edits of ours before. A file that
    the user has changed since keeps its entry, so that a revert will stop and name it.
    """
    held = set(held_edits)
    updated = dict(entries)
    for patch in patches:
        entry = entries.get(patch.path)
        if entry is None or patch.before is None or patch.before == entry.original:
            updated[patch.path] = Entry(patch.before, digest(patch.after), ())
        elif digest(patch.before) == entry.patched_sha256:
            updated[patch.path] = Entry(entry.original, digest(patch.after), ())
        elif patch.path not in held:  # brought back to a plain file since, by git for instance
            updated[patch.path] = Entry(patch.before, digest(patch.after), ())
    return updated


def with_seams(entries: dict[str, Entry], texts: Mapping[str, bytes]) -> dict[str, Entry]:
    """The manifest with the names that the files of `texts` use now."""
    return {
        name: replace(entry, seams=api_names(texts[name])) if name in texts else entry
        for name, entry in entries.items()
    }


def revert(host: Host, force: bool = False) -> Reverted:
    """Gives back the bytes of every file in the manifest, removes the added ones and the
    Raises PatchError naming files edited since the apply; with `force` they are kept as
    `<file>.edited`.
    """
    entries = load(host.package)
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
        write_all([*changes, Change(host.package / NAME, None)])
    return Reverted(tuple(restored), tuple(removed), tuple(copies))


def _pack(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def _entry(name: str, item: dict) -> Entry:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{name} is outside the package")
    original = item["original"]
    data = None if original is None else zlib.decompress(base64.b64decode(original, validate=True))
    if data is not None and digest(data) != item["original_sha256"]:
        raise ValueError(f"the original of {name} does not have its hash")
    return Entry(data, item["patched_sha256"], tuple(item["seams"]))


def _require_no_edits(host: Host) -> None:
    """Raises PatchError if the host contains edits of ours, without a record of what was there."""
    files = host.files(("**/*.py",))
    held = [name for name in files if b"robomimic_ddp" in (host.read(name) or b"")]
    if held:
        raise PatchError(
            f"{host.package} contains edits of robomimic-ddp ({', '.join(held)}), and no record of "
            f"the original files ({NAME}): a revert could not give back their bytes. "
            "Nothing was written. Take the edits back with git (git checkout, git revert, or "
            "git apply -R where they came from a patch), or put the record back."
        )


def _edited(host: Host, name: str, entry: Entry) -> bool:
    present = host.read(name)
    if present == entry.original:
        return False
    return present is None or digest(present) != entry.patched_sha256


def _free_name(path: Path) -> Path:
    names = (f"{path.name}.edited{number or ''}" for number in range(10_000))
    return next(place for place in map(path.with_name, names) if not place.exists())
