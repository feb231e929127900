"""Find a dataset prepared by tensorflow-datasets, and read its metadata, without TensorFlow."""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import paths
from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.data.rlds.index.records import stored_checksums
from robomimic_ddp.data.rlds.pipeline.images import require_libraries
from robomimic_ddp.data.rlds.schema.features import is_picture, step_features
from robomimic_ddp.errors import DataError

INFO_FILE = "dataset_info.json"
SPLIT = "train"
_READERS = 16
"""Files whose checksums are read at once: a disk on a network takes a millisecond for each."""
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
_JSON_KEYS = ("json", "content")
"""Keys of features.json whose text is JSON again."""


def is_rlds_folder(path: str | None) -> bool:
    """Return whether `path` is the version folder of a dataset prepared by tensorflow-datasets."""
    return path is not None and (paths.expanded(path) / INFO_FILE).is_file()


def find_dataset(data_path: str, name: str, version: str | None = None) -> Path:
    """Return `data_path/name/version` (None: newest), or `data_path` itself. Raises DataError."""
    root = paths.absolute(data_path)
    if not data_path or not root.is_dir():
        raise DataError(
            f"train.data_path={data_path!r} is not a folder. It must contain the datasets that "
            "tensorflow-datasets has prepared, as <name>/<version>."
        )
    is_version = is_rlds_folder(str(root))
    if is_version and version in (None, root.name) and name in _names(root):
        return root
    parent = root / name if (root / name).is_dir() else root
    if parent is root and not (name == root.name and _version_folders(root)):
        folders = (entry.name for entry in root.iterdir() if entry.is_dir())
        others = ", ".join(sorted(_names(root) if is_version else folders)) or "nothing"
        raise DataError(
            f"there is no dataset {name!r} in train.data_path={data_path}: found {others}. "
            "Check train.dataset_names, or prepare the dataset there."
        )
    if version is not None and not is_rlds_folder(str(parent / version)):
        raise DataError(
            f"dataset {name!r} in {root} has no version {version!r} that is ready: found "
            f"{_describe_versions(parent)}."
        )
    versions = _version_folders(parent)
    if not versions:
        raise DataError(
            f"dataset {name!r} in {root} is not ready: found {_describe_versions(parent)}. A "
            f"dataset is read once its version folder contains {INFO_FILE}; finish preparing it."
        )
    newest = max(versions, key=lambda folder: [int(part) for part in folder.name.split(".")])
    return parent / version if version else newest


def _names(folder: Path) -> set[str]:
    """Return the names of the dataset in a version folder: its folder's, and as it was prepared."""
    with suppress(OSError, ValueError, AttributeError):  # damaged: read again, and named, later
        return {folder.parent.name, str(files.read_json(folder / INFO_FILE).get("name"))}
    return {folder.parent.name}


def _version_folders(parent: Path) -> list[Path]:
    return [
        folder
        for folder in parent.iterdir()
        if _VERSION.fullmatch(folder.name) and is_rlds_folder(str(folder))
    ]


def _describe_versions(parent: Path) -> str:
    names = sorted(entry.name for entry in parent.iterdir())
    if any("incomplete" in name for name in names):
        return f"{', '.join(names)} (an incomplete folder: still being written, or interrupted)"
    return ", ".join(names) or "an empty folder"


def _require_known_classes(content: Any, key: str = "") -> None:
    """Raise ValueError if features.json has a feature of another package: tensorflow-datasets
    would import that, from the current folder too.
    """
    if isinstance(content, dict):
        for name, value in content.items():
            _require_known_classes(value, name)
    elif isinstance(content, list):
        for value in content:
            _require_known_classes(value, key)
    elif key in _JSON_KEYS and isinstance(content, str) and content:
        _require_known_classes(files.parse_json(content))
    elif key in _CLASS_KEYS and isinstance(content, str):
        if not content.startswith("tensorflow_datasets."):
            raise ValueError(
                f"features.json names the class {content}, which could run arbitrary code"
            )


@dataclass(frozen=True)
class Source:
    """One dataset on disk. skip_missing: missing files are counted, and not an error."""

    folder: Path
    skip_missing: bool = False

    @property
    def name(self) -> str:
        """The dataset's name, for messages."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @cached_property
    def builder(self) -> Any:
        """tensorflow-datasets' read-only builder. Raises DataError for damaged metadata, or if a
        library is missing.
        """
        tfds = require_libraries()
        try:
            _require_known_classes(files.read_json(self.folder / "features.json"))
            files.regular(self.folder / INFO_FILE, files.MOST_BYTES)
            return tfds.builder_from_directory(str(self.folder))
        # tensorflow-datasets passes on any exception of its parsers.
        except Exception as error:
            reason = (str(error).strip().splitlines() or ["no reason"])[0].rstrip(".")
            raise DataError(
                f"the metadata of the dataset in {self.folder} cannot be read: "
                f"{type(error).__name__}: {reason}. Prepare the dataset again."
            ) from error

    @property
    def features(self) -> Any:
        """The features of an episode."""
        return self.builder.info.features

    @cached_property
    def steps(self) -> dict[str, Any]:
        """The features of a step, by name. Raises DataError for a dataset that is not RLDS."""
        return step_features(self.features, str(self.folder))

    @property
    def cameras(self) -> list[str]:
        """The step features that are colour images."""
        return sorted(name for name, feature in self.steps.items() if is_picture(feature))

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The record files of split "train", in order. Raises DataError where one is missing."""
        splits = self.builder.info.splits
        if SPLIT not in splits or splits[SPLIT].num_examples == 0:
            raise DataError(
                f"{self.folder} has no episodes in split {SPLIT!r}: found splits "
                f"{dict((name, info.num_examples) for name, info in splits.items())}."
            )
        written = str(getattr(self.builder.info.file_format, "value", "tfrecord"))
        if written != "tfrecord":
            raise DataError(
                f"{self.folder} is stored as {written!r}; only 'tfrecord' is read. Convert it with "
                "`tfds convert_format`."
            )
        files = tuple(Path(path) for path in splits[SPLIT].filepaths)
        missing = [path.name for path in files if not path.is_file()]
        if missing and not self.skip_missing:
            raise DataError(
                f"{len(missing)} of the {len(files)} record files of {self.folder} are missing, "
                f"such as {missing[0]}. Copy or prepare the dataset again."
            )
        return files

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each of `files`; 0 for one that is not there."""
        return tuple(path.stat().st_size if path.is_file() else 0 for path in self.files)

    @cached_property
    def checksums(self) -> str:
        """Digest of the checksums that the files store of their records. It differs if an episode
        is changed in place, in a file of the same size. Reads 12 bytes of a record. Raises
        DataError for a file that cannot be read.
        """

        def digest_of(path: Path) -> bytes:
            checksums = [checksum for _, checksum in stored_checksums(path, self.skip_missing)]
            return hashlib.sha256(b"".join(checksums)).digest()

        with ThreadPoolExecutor(_READERS) as threads:
            return hashlib.sha256(b"".join(threads.map(digest_of, self.files))).hexdigest()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Name, files (names, sizes), digests of the records' checksums and of the features."""
        return {
            "dataset": self.name,
            "files": [[path.name, size] for path, size in zip(self.files, self.sizes)],
            "checksums": self.checksums,
            "metadata": hashlib.sha256(files.read_bytes(self.folder / "features.json")).hexdigest(),
        }

    @cached_property
    def prepared(self) -> dict[str, Any] | None:
        """The notes of `prepare-data`, if it has written this dataset (see `index.prepared`)."""
        return prepared.read(self.folder)

    @cached_property
    def episodes_per_file(self) -> tuple[int, ...]:
        """Number of episodes of each of `files`, by the metadata."""
        return tuple(self.builder.info.splits[SPLIT].shard_lengths)

    @cached_property
    def left_out(self) -> dict[int, list[int]]:
        """For a prepared set: number of a file -> numbers of records that it lacks."""
        lost = (self.prepared or {"left_out": {}})["left_out"].get(SPLIT, {})
        return {int(file): numbers for file, numbers in lost.items()}

    @property
    def episodes_of_source(self) -> list[int]:
        """`episodes_per_file`, of the source for a prepared set."""
        counts = enumerate(self.episodes_per_file)
        return [count + len(self.left_out.get(file, ())) for file, count in counts]
