"""The record, in the host, of what was edited: enough to give back every byte without git.

`.robomimic_ddp.json` has, per file, the hash of what we wrote, the original's bytes (or none), and
the names of our api that it uses: a run on several ranks looks for them (`host_seams`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches.outcomes import FilePatch
from robomimic_ddp.patches.syntax.python import api_names

NAME = ".robomimic_ddp.json"
FORMAT = 1
_NOTE = (
    "Written by robomimic-ddp apply; robomimic-ddp revert needs it to give back the original files."
)


@dataclass(frozen=True)
class Entry:
    """One file: its bytes before the first edit (None: it was added), the hash of what we wrote
    last, and the names of our api in it (older records have none).
    """

    original: bytes | None
    patched_sha256: str
    seams: tuple[str, ...] = ()


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
            updated[patch.path] = Entry(patch.before, digest(patch.after))
        elif digest(patch.before) == entry.patched_sha256:
            updated[patch.path] = Entry(entry.original, digest(patch.after))
        elif patch.path not in held:  # brought back to a plain file since, by git for instance
            updated[patch.path] = Entry(patch.before, digest(patch.after))
    return updated


def with_seams(entries: dict[str, Entry], texts: Mapping[str, bytes]) -> dict[str, Entry]:
    """The manifest with the names that the files of `texts` use now."""
    return {
        name: replace(entry, seams=api_names(texts[name])) if name in texts else entry
        for name, entry in entries.items()
    }


def _pack(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def _entry(name: str, item: dict) -> Entry:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{name} is outside the package")
    original = item["original"]
    data = None if original is None else zlib.decompress(base64.b64decode(original, validate=True))
    if data is not None and digest(data) != item["original_sha256"]:
        raise ValueError(f"the original of {name} does not have its hash")
    return Entry(data, item["patched_sha256"], tuple(item.get("seams", ())))
