"""The prepared set that `prepare-data` writes: its folder while it is written, and its metadata.

Files are written into DEST/<name>/<version>.incomplete, each appearing when it is complete, with a
note that describes it. The task that finishes the last file adds the metadata and renames the
folder. So tasks need not know of each other, and a killed task is simply started again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from robomimic_ddp import __version__, files
from robomimic_ddp.commands.prepare_data import metadata
from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.data.rlds.index.source import Source, is_rlds_folder
from robomimic_ddp.distributed.atomic_files import atomic_open, must_be_written
from robomimic_ddp.errors import DataError

INCOMPLETE = ".incomplete"
SETTINGS, DONE = "prepare.json", "done"
"""In the incomplete folder: the notes of the set, and the folder with the notes of its files."""
_COMPARED = ("size", "encoding", "quality", "cameras", "dropped")


@dataclass(frozen=True)
class RecordFile:
    """A record file of the source: its split, its number in the split, its path, and its episodes
    by the metadata; size: in bytes, 0 for a missing file.
    """

    split: str
    number: int
    path: Path
    episodes: int
    size: int


@dataclass(frozen=True)
class Job:
    """A prepared set. root: DEST; size: height and width; quality: of JPEG; cameras, dropped: step
    features to keep and to drop; skip_corrupt: see `ddp.skip_corrupt`; threads: of this process.
    """

    source: Source
    root: Path
    size: tuple[int, int]
    quality: int
    cameras: tuple[str, ...]
    dropped: tuple[str, ...]
    skip_corrupt: bool
    threads: int

    @cached_property
    def target(self) -> Path:
        """The folder of the prepared set: DEST/<name>/<version>, with the source's names."""
        folder, config = self.source.folder.absolute(), self.source.builder.info.config_name
        levels = 3 if config and config == folder.parent.name else 2
        return self.root.joinpath(*folder.parts[-levels:])

    @property
    def work(self) -> Path:
        """The folder until the set is complete."""
        return self.target.with_name(self.target.name + INCOMPLETE)

    @cached_property
    def stored(self) -> dict[str, tuple[int | None, ...]]:
        """Height and width of each camera's images in the source."""
        return {name: tuple(self.source.steps[name].shape[:2]) for name in self.cameras}

    @property
    def changed(self) -> list[str]:
        """The cameras whose images are encoded again: all but JPEGs of the right size."""
        steps = self.source.steps
        jpeg = {name for name in self.cameras if steps[name].encoding_format == "jpeg"}
        return [n for n in self.cameras if n not in jpeg or self.stored[n] != self.size]

    @cached_property
    def files(self) -> list[RecordFile]:
        """All record files of all splits. Raises DataError where one of split "train" is missing,
        unless `skip_corrupt`.
        """
        self.source.files  # noqa: B018 - checks the split that training reads
        record_files = []
        for split, info in self.source.builder.info.splits.items():
            for number, path in enumerate(map(Path, info.filepaths)):
                size = path.stat().st_size if path.is_file() else 0
                episodes = info.shard_lengths[number]
                record_files.append(RecordFile(split, number, path, episodes, size))
        return record_files

    def is_complete(self) -> bool:
        """Return whether the set exists, made as this job would make it. Raises DataError if there
        is something else, complete or incomplete.
        """
        if self.target.exists() and self.target.samefile(self.source.folder):
            raise DataError(
                f"{self.target} is the source itself, which must not change. Name another "
                "destination."
            )
        # In this order, since another task may begin or complete the set meanwhile.
        foreign = [folder for folder in (self.target, self.work) if _has_content(folder)]
        begun = self._begun()
        notes = prepared.read(self.target) if is_rlds_folder(str(self.target)) else None
        if notes is not None:
            self._require_same(notes, self.target)
            return True
        if begun is not None:
            self._require_same(begun, self.work)
            foreign = [folder for folder in foreign if folder != self.work]
        for folder in foreign:
            raise _refused(folder, "something that prepare-data has not written")
        return False

    def begin(self) -> None:
        """Make the incomplete folder, with the notes of this job. Raises WriteError."""
        path = self.work / SETTINGS
        with must_be_written(path):
            self.work.mkdir(parents=True, exist_ok=True)
            with atomic_open(path) as file:
                json.dump(self._notes, file)
            (self.work / DONE).mkdir(exist_ok=True)

    @cached_property
    def _notes(self) -> dict[str, Any]:
        """The notes of the set, see `index.prepared`, without `left_out`."""
        identity = self.source.identity
        return {
            "format": prepared.FORMAT,
            "by": f"robomimic-ddp {__version__}",
            "source": identity,
            "folder": str(self.source.folder.absolute()),
            "fingerprint": prepared.fingerprint(identity),
            "size": list(self.size),
            "encoding": "jpeg",
            "quality": self.quality,
            "cameras": list(self.cameras),
            "dropped": list(self.dropped),
        }

    def _begun(self) -> dict[str, Any] | None:
        """Return the notes of the incomplete folder, if there are any."""
        try:
            return files.read_json(self.work / SETTINGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise _refused(self.work, f"a {SETTINGS} that cannot be read ({error})") from error

    def _require_same(self, notes: Mapping[str, Any], folder: Path) -> None:
        """Raise DataError if `notes` are of another source or of other settings."""
        if notes.get("fingerprint") != self._notes["fingerprint"]:
            raise _refused(folder, f"what was prepared from another source, {notes.get('folder')}")
        for key in _COMPARED:
            if notes.get(key) != self._notes[key]:
                raise _refused(
                    folder, f"what was prepared with {key}={notes.get(key)}, not {self._notes[key]}"
                )

    def note_of(self, file: RecordFile) -> dict[str, Any] | None:
        """Return the note of a finished file; None if it is not finished, or has another size."""
        try:
            note = files.read_json(self.work / DONE / f"{file.path.name}.json")
            size = (self.work / file.path.name).stat().st_size
            return note if note["bytes"] == size else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def finish(self, file: RecordFile, note: Mapping[str, Any]) -> None:
        """Write the note of a file. Raises WriteError."""
        path = self.work / DONE / f"{file.path.name}.json"
        with must_be_written(path), atomic_open(path) as out:
            json.dump(note, out)

    def complete(self) -> bool:
        """Add the metadata and rename the folder if all files are finished; return whether the set
        is complete. Several tasks may call this at once. Raises WriteError, or OSError for a file
        of the source.
        """
        done = {file: self.note_of(file) for file in self.files}
        if None in done.values():
            return is_rlds_folder(str(self.target))
        with must_be_written(self.target):
            try:
                self._write_metadata(done)
                self.work.rename(self.target)
            except OSError:
                if not is_rlds_folder(str(self.target)):  # else another task was faster
                    raise
        self.tidy()
        return True

    def tidy(self) -> None:
        """Remove from the complete set the files that were needed only while it was written, and
        the temporary files of tasks that were killed or that another task was faster than.
        """
        shutil.rmtree(self.target / DONE, ignore_errors=True)
        (self.target / SETTINGS).unlink(missing_ok=True)
        for temporary in self.target.glob(".*.tmp"):
            temporary.unlink(missing_ok=True)

    def _write_metadata(self, done: Mapping[RecordFile, Any]) -> None:
        images = {**dict.fromkeys(self.changed, self.size), **dict.fromkeys(self.dropped)}
        metadata.write(self.work, self.source.folder, self._notes, done, images)


def _has_content(folder: Path) -> bool:
    """Return whether the folder contains anything but notes that another task is writing."""
    try:
        return any(not name.startswith(f".{SETTINGS}.") for name in os.listdir(folder))
    except OSError as error:
        return not isinstance(error, FileNotFoundError)


def _refused(folder: Path, fault: str) -> DataError:
    return DataError(
        f"{folder} has {fault}. Nothing there was changed: name another destination, or remove "
        "that folder if it is not needed."
    )
