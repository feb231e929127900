"""Writes several files, all or none, whatever fails in between: a full disk, an immutable file.

What needs room on the disk comes first, in the folders of the files (`.train.py.<random>.tmp`): the
new contents, and a second name for the old ones. After that, files only change names.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from robomimic_ddp import files
from robomimic_ddp.errors import PatchError

_REMNANT = re.compile(r"\..+\.(py|json)\.[a-z0-9_]{8}\.tmp")


@dataclass(frozen=True)
class Change:
    """`after` becomes the contents of `path` in the place of `before`, as it was read (None: no
    file). `mode`: permission bits of a new file. `is_record`: it tells what the others were, and
    stays where one cannot be put back.
    """

    path: Path
    before: bytes | None
    after: bytes | None
    mode: int | None = None
    is_record: bool = False


def write_all(changes: Sequence[Change]) -> None:
    """Makes all `changes` in order. Raises PatchError if one cannot be made, or if another program
    has saved a file since it was read: every file is then as it was, with that edit, or the message
    says which is not.
    """
    for change in changes:
        _require_writable(change.path)
    staged = [_Staged(change) for change in changes]
    present = staged[0]
    try:
        for step in (_Staged.prepare, _Staged.make):
            for present in staged:
                step(present)
    except BaseException as error:  # an interrupt as well: half a retrofit would train wrongly
        left = _take_back(staged)
        if not left and not isinstance(error, OSError):
            raise
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise PatchError(_failed(present.change.path, reason, left)) from error
    finally:
        for file in staged:
            file.clean()


def _take_back(staged: Sequence[_Staged]) -> list[str]:
    """Return what could not be put back, one line each."""
    left = [file.take_back() for file in reversed(staged) if not file.change.is_record]
    left = [line for line in left if line]
    if not left:
        left = [file.take_back() for file in staged if file.change.is_record]
    return [line for line in left if line]


def _failed(path: Path, reason: str, left: Sequence[str]) -> str:
    state = "Every file is as it was."
    if left:
        listed = "\n".join(f"  {line}" for line in left)
        state = (
            f"These files could not be put back, so the host is half patched:\n{listed}\n"
            "All others are as they were. Do not train. Make these files writable, then run "
            "robomimic-ddp apply or revert to finish."
        )
    return (
        f"{path} cannot be written: {reason}. {state} To train without editing any file: "
        "torchrun ... -m robomimic_ddp run MODULE ARGUMENTS"
    )


def remove_remnants(folders: Iterable[Path]) -> None:
    """Removes what a killed `write_all` has left in `folders`; never fails."""
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            if _REMNANT.fullmatch(path.name):
                _remove(path)


class _Staged:
    """One change, with all that takes room on the disk done. Raises OSError."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self.target = change.path.resolve()  # a link stays a link
        self.new: Path | None = None
        self.is_removed = False
        self.former: Path | None = None

    def prepare(self) -> None:
        self._require_unchanged()
        is_there = self.change.before is not None
        if is_there:
            self.former = self._beside()
            try:  # another name of the file itself, where the file system has such
                self.former.unlink()
                os.link(self.target, self.former)
            except OSError:
                shutil.copy2(self.target, self.former)
        if self.change.after is not None:
            self.new = self._beside()
            with self.new.open("wb") as file:
                file.write(self.change.after)
                file.flush()
                os.fsync(file.fileno())
            mode = stat.S_IMODE(self.target.stat().st_mode) if is_there else self.change.mode
            self.new.chmod(0o644 if mode is None else mode)

    def make(self) -> None:
        self._require_unchanged()
        if self.new is not None:
            os.replace(self.new, self.target)
        else:
            self.target.unlink()
            self.is_removed = True

    def _require_unchanged(self) -> None:
        if _content(self.target) != self.change.before:
            raise OSError(
                "another program has saved it since it was read. Save your work, then run the "
                "command again"
            )

    def take_back(self) -> str:
        """Returns "", or what is wrong with the file if it cannot be put back."""
        is_replaced = self.new is not None and not self.new.exists()
        if not (is_replaced or self.is_removed):
            return ""
        if _content(self.target) != self.change.after:
            return f"{self.change.path} has the new contents, edited since"
        try:
            if self.former is None:
                self.target.unlink(missing_ok=True)
            else:
                os.replace(self.former, self.target)
        except OSError as error:
            state = "has the new contents" if self.new else "is removed"
            return f"{self.change.path} {state}: {error.strerror or error}"
        return ""

    def clean(self) -> None:
        """Remove what is left in the folder of the target."""
        for path in (self.new, self.former):
            if path is not None:
                _remove(path)

    def _beside(self) -> Path:
        name = self.target.name
        handle, path = tempfile.mkstemp(dir=self.target.parent, prefix=f".{name}.", suffix=".tmp")
        os.close(handle)
        return Path(path)


def _require_writable(path: Path) -> None:
    """Raise PatchError for a read-only file or folder, whose content could often be replaced."""
    for place in (path, path.parent):
        if place.exists() and not place.stat().st_mode & stat.S_IWUSR:
            raise PatchError(
                f"{place} is read-only. Nothing was written. If it may be edited, make it writable "
                "(chmod u+w) and run again. To train without editing any file: "
                "torchrun ... -m robomimic_ddp run MODULE ARGUMENTS"
            )


def _content(path: Path) -> bytes | None:
    """Return the bytes of a file; None where there is none."""
    try:
        return files.read_bytes(path)
    except FileNotFoundError:
        return None


def _remove(path: Path) -> None:
    with suppress(OSError):  # a read-only file system: the next command tries again
        path.unlink(missing_ok=True)
