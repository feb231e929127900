"""What `prepare-data` writes, and where: its folder while it is written, and its metadata.

Files are written into DEST/<name>/<version>.incomplete, each whole or not at all, with a note of
what is in it. Who finishes the last one, of any task, adds the metadata and renames the folder. So
tasks need not know of each other, and one that is killed is started again.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from robomimic_ddp import __version__, files
from robomimic_ddp.data import array_cache
from robomimic_ddp.data.rlds.index import cache, prepared
from robomimic_ddp.data.rlds.index.build import as_index
from robomimic_ddp.data.rlds.index.source import INFO_FILE, SPLIT, Source, is_rlds_folder
from robomimic_ddp.data.rlds.index.statistics import merged
from robomimic_ddp.data.rlds.pipeline.images import PictureSize
from robomimic_ddp.data.rlds.schema.features import step_features
from robomimic_ddp.data.rlds.schema.fields import Fields
from robomimic_ddp.distributed.atomic_files import atomic_open, must_be_written
from robomimic_ddp.errors import DataError

INCOMPLETE = ".incomplete"
SETTINGS, DONE = "prepare.json", "done"
"""In the incomplete folder: the notes of the set, and the folder of those of its files."""
_COMPARED = ("size", "filter", "encoding", "quality", "cameras", "dropped")


@dataclass(frozen=True)
class RecordFile:
    """A record file of the source: its split, number in that, path, and episodes by the metadata;
    size: bytes, 0 for one that is missing.
    """

    split: str
    number: int
    path: Path
    episodes: int
    size: int


@dataclass(frozen=True)
class Job:
    """A prepared set. root: DEST; cameras, dropped: step features to keep and to drop; quality: of
    JPEG; skip_corrupt: see `ddp.skip_corrupt`; threads: of this process; fields: what the runs read
    that the set gets an index for, or None.
    """

    source: Source
    root: Path
    size: PictureSize
    quality: int
    cameras: tuple[str, ...]
    dropped: tuple[str, ...]
    skip_corrupt: bool
    threads: int
    fields: Fields | None = None

    @cached_property
    def target(self) -> Path:
        """The folder of the prepared set: DEST/<name>/<version>, as the source's is called."""
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
        steps = step_features(self.source.features, str(self.source.folder))
        return {name: tuple(steps[name].shape[:2]) for name in self.cameras}

    @property
    def changed(self) -> list[str]:
        """The cameras whose images are encoded again: all but JPEGs that have the size already."""
        steps = step_features(self.source.features, str(self.source.folder))
        jpeg = {name for name in self.cameras if steps[name].encoding_format == "jpeg"}
        return [n for n in self.cameras if n not in jpeg or self.stored[n] != self.size.pixels]

    @cached_property
    def files(self) -> list[RecordFile]:
        """All record files of all splits. Raises DataError where one of split "train" is missing,
        unless `skip_corrupt`.
        """
        self.source.files  # noqa: B018 - checks the split that training reads
        found = []
        for split, info in self.source.builder.info.splits.items():
            for number, path in enumerate(map(Path, info.filepaths)):
                size = path.stat().st_size if path.is_file() else 0
                episodes = info.shard_lengths[number]
                found.append(RecordFile(split, number, path, episodes, size))
        return found

    def is_complete(self) -> bool:
        """Return whether the set is there, made as this job would make it. Raises DataError if
        something else is, or a part of something else.
        """
        if self.target.exists() and self.target.samefile(self.source.folder):
            raise DataError(
                f"{self.target} is the source itself, which must stay as it is. Name another DEST."
            )
        notes = prepared.read(self.target) if is_rlds_folder(str(self.target)) else None
        if notes is not None:
            self._require_same(notes, self.target)
            return True
        begun = self._begun()
        if begun is not None:
            self._require_same(begun, self.work)
        for folder in (self.target, *([self.work] if begun is None else [])):
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
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
        """What `prepared` says of the set, but for `psnr` and `left_out`."""
        identity = self.source.identity
        return {
            "format": prepared.FORMAT,
            "by": f"robomimic-ddp {__version__}",
            "source": identity,
            "folder": str(self.source.folder.absolute()),
            "fingerprint": prepared.fingerprint(identity),
            "size": list(self.size.pixels),
            "filter": self.size.filter,
            "encoding": "jpeg",
            "quality": self.quality,
            "cameras": list(self.cameras),
            "dropped": list(self.dropped),
        }

    def _begun(self) -> dict[str, Any] | None:
        """Return the notes of the incomplete folder, or None where there are none."""
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
        """Return the note of a finished file, or None if it is not finished, or has no part of the
        index though one is made.
        """
        try:
            note = files.read_json(self.work / DONE / f"{file.path.name}.json")
            size = (self.work / file.path.name).stat().st_size
        except (OSError, ValueError):
            return None
        indexed = self.fields is None or self._part(file).is_file()
        return note if note["bytes"] == size and indexed else None

    def _part(self, file: RecordFile) -> Path:
        """Return the path of the part of the index of `file` while the set is written."""
        return self.work / DONE / f"{file.path.name}.{self._fields_digest}.npz"

    @cached_property
    def _fields_digest(self) -> str:
        assert self.fields is not None
        return cache.fingerprint(self.source.identity, self.fields)

    def finish(
        self, file: RecordFile, note: Mapping[str, Any], described: Sequence[tuple] = ()
    ) -> None:
        """Note that `file` is written, and its rows of the index. Raises WriteError."""
        path = self.work / DONE / f"{file.path.name}.json"
        if self.fields is not None:
            with must_be_written(self._part(file)):
                part = as_index(described, self.fields)
                array_cache.write(self._part(file), cache.arrays_of(part))
        with must_be_written(path), atomic_open(path) as out:
            json.dump(note, out)

    def complete(self) -> bool:
        """Add the metadata and rename the folder, if all files are finished; return whether the set
        is complete. Several tasks may do this at once. Raises WriteError.
        """
        done = {file: self.note_of(file) for file in self.files}
        if None in done.values():
            return is_rlds_folder(str(self.target))
        with must_be_written(self.target):
            try:
                self._write_metadata(done)
                self._write_index()
                for left in self.work.rglob(".*.tmp"):  # of killed tasks
                    left.unlink(missing_ok=True)
                self.work.rename(self.target)
            except (OSError, DataError) as error:
                if not is_rlds_folder(str(self.target)):  # else another task was faster
                    if isinstance(error, OSError):
                        raise OSError(error.errno, error.strerror) from error
                    raise
        self.tidy()
        return True

    def tidy(self) -> None:
        """Remove from the complete set what was needed while it was written."""
        shutil.rmtree(self.target / DONE, ignore_errors=True)
        (self.target / SETTINGS).unlink(missing_ok=True)

    def _write_index(self) -> None:
        files = [file for file in self.files if file.split == SPLIT]
        parts = [cache.read(self._part(file)) for file in files] if self.fields else [None]
        if self.fields and all(parts):  # a run makes it otherwise
            name = f"{self.target.parent.name}/{self.target.name}"
            written = Source(self.work, self.skip_corrupt), name, self.fields
            cache.write_in_set(self.work, *written, merged(parts))

    def _write_metadata(self, done: Mapping[RecordFile, Any]) -> None:
        folder, notes = self.source.folder, {**self._notes, "psnr": _merged_psnr(done.values())}
        features = files.read_json(folder / "features.json")
        self._change_features(features)
        info = files.read_json(folder / INFO_FILE)
        line = f"Prepared by robomimic-ddp: images of {prepared.quality(notes)}."
        info["description"] = f"{info.get('description', '')}\n{line}".strip()
        info.pop("downloadSize", None)
        left_out: dict[str, dict[str, list[int]]] = {}
        for split in info["splits"]:
            of_split = {f: note for f, note in done.items() if f.split == split["name"]}
            split["shardLengths"] = [str(note["episodes"]) for note in of_split.values()]
            split["numBytes"] = str(sum(note["bytes"] for note in of_split.values()))
            lost = {str(f.number): n["left_out"] for f, n in of_split.items() if n["left_out"]}
            left_out |= {split["name"]: lost} if lost else {}
        path = folder / prepared.INFO
        metadata = files.read_json(path) if path.is_file() else {}
        metadata[prepared.KEY] = {**notes, "left_out": left_out}
        for name in folder.iterdir():  # such as the names of labels
            if name.is_file() and name.suffix in (".txt", ".json"):
                shutil.copyfile(name, self.work / name.name)
        # INFO_FILE last: tensorflow-datasets reads a folder that has it.
        whole = {"features.json": features, prepared.INFO: metadata, INFO_FILE: info}
        for name, value in whole.items():
            with atomic_open(self.work / name) as file:
                json.dump(value, file, indent=None if name == prepared.INFO else 2)

    def _change_features(self, features: Any) -> None:
        """Set the size of the kept cameras in a `features.json`, and takes out the others."""
        steps = _children(features)["steps"]
        for name in (*self.changed, *self.dropped):
            *groups, leaf = name.split("/")
            places = [_children(steps)]
            for group in groups:
                places.append(_children(places[-1][group]))
            if name not in self.dropped:
                image = places[-1][leaf]["image"]
                image["shape"] = {"dimensions": [*map(str, self.size.pixels), "3"]}
                image["encodingFormat"] = "jpeg"
                continue
            del places[-1][leaf]
            for place, group in zip(reversed(places[:-1]), reversed(groups)):
                if not _children(place[group]):
                    del place[group]


def _merged_psnr(notes: Iterable[Any]) -> dict[str, Any] | None:
    """Return `psnr` of the set's notes (see `index.prepared`) from the `notes` of its files."""
    psnr = [value for note in notes for value in note["psnr"]]
    if not psnr:
        return None
    return {"mean": statistics.fmean(psnr), "least": min(psnr), "frames": len(psnr)}


def _children(node: Any) -> Any:
    """Return the features of a dict in a `features.json`, or of the steps of a dataset."""
    while "featuresDict" not in node:
        node = node["sequence"]["feature"]
    return node["featuresDict"]["features"]


def _refused(folder: Path, found: str) -> DataError:
    return DataError(
        f"{folder} has {found}. Nothing there was changed: name another DEST, or remove that "
        "folder if it is not needed."
    )
