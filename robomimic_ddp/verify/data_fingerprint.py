"""What a rank reads: the dataset's files, the loader, the order of the pass, the batches trained.

Everything is read by attribute; a loader or dataset that lacks one is not judged by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import paths
from robomimic_ddp.verify.comparison import Different

_FILES, _BLOCKS, _BLOCK_BYTES = 64, 16, 4096
"""At most so many files of a dataset are looked at, so many places in each, so much at a place."""
HINTS = {
    "train ": "Every rank must read the same data, normalised alike, in as many batches: copies on "
    "nodes must be equal, and nothing before the loader may depend on the rank.",
    "number of training": "Every rank must train on each batch that its loader gives it.",
    "the order of": "The host's sampler draws from a generator of its own that differs by rank, so "
    "samples would be repeated and missed. Seed it with train.seed.",
}
_REPEATS_THAT_TELL = 10
"""Samples repeated in an unbroken row: by chance below 1e-9 where a pass has no sample twice."""


def loader_items(loader: Any) -> dict[str, Hashable]:
    """Sizes of the loader and its dataset, digests of its normalisation and of its files."""
    if loader is None:
        return {}
    dataset = getattr(loader, "dataset", None)
    items: dict[str, Hashable] = {"train dataset: number of samples": length(dataset)}
    for name, held in statistics(dataset).items():
        items[f"train dataset: {name}"] = None if held is None else digest(held)
    items["train dataset: bytes of its files"] = fingerprint(dataset)
    items["train loader"] = type(loader).__name__
    items["train loader: batch size"] = getattr(loader, "batch_size", None)
    items["train loader: number of batches"] = length(loader)
    return items


def statistics(dataset: Any) -> dict[str, Any]:
    """Name -> what the dataset normalises by, or None."""
    names = ("action_normalization_stats", "obs_normalization_stats")
    return {name: _statistics(dataset, name) for name in names}


def _statistics(dataset: Any, name: str) -> Any:
    held = getattr(dataset, name, None)
    if held is None and hasattr(dataset, "is_rlds"):  # ours: from the index, cheap
        return getattr(dataset, f"get_{name}", lambda: None)()
    return held


def length(sized: Any) -> int | None:
    """None where there is none, or the host's own is faulty: that of DROID's RLDS dataset uses a
    name which it does not import, and nothing in the host asks for it.
    """
    try:
        return len(sized)
    except Exception:
        return None


def digest(nest: Any) -> str:
    """Digest of nested mappings and sequences of arrays and plain values."""
    total = hashlib.blake2b(digest_size=8)

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            for key in value:
                total.update(f"<{key}>".encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        elif hasattr(value, "shape"):
            array = np.ascontiguousarray(value)
            total.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            total.update(repr(value).encode())

    add(nest)
    return total.hexdigest()


def files_of(dataset: Any) -> Iterator[Path]:
    """The files that a dataset reads: HDF5, mixtures of those, RLDS."""
    for part in getattr(dataset, "datasets", None) or ():
        yield from files_of(part)
    path = getattr(dataset, "hdf5_path", None)
    if path is not None:
        yield paths.expanded(path)
    yield from (Path(str(file)) for file in getattr(getattr(dataset, "source", None), "files", ()))


def fingerprint(dataset: Any) -> str | None:
    """Digest of the sizes of the files and of samples of their bytes; None where none is known.

    Nodes may have copies of their own. Reads at most 4 MB; a file that cannot be read counts by
    its error.
    """
    files = list(files_of(dataset))
    if not files:
        return None
    total = hashlib.blake2b(f"{len(files)} files".encode(), digest_size=8)
    for number in sorted({round(i * (len(files) - 1) / (_FILES - 1)) for i in range(_FILES)}):
        try:
            size = files[number].stat().st_size
            total.update(f"{number}:{size}".encode())
            with open(files[number], "rb") as file:
                for block in range(_BLOCKS):
                    file.seek(block * max(0, size - _BLOCK_BYTES) // (_BLOCKS - 1))
                    total.update(file.read(_BLOCK_BYTES))
        except OSError as error:
            total.update(f"{number}:{type(error).__name__}".encode())
    return total.hexdigest()


def order_items(loader: Any) -> dict[str, Hashable]:
    """The order of the present pass over the data, which all ranks share."""
    found = getattr(loader, "order_digest", None)
    return {} if found is None else {"the order of the present pass over the data": found()}


def share(loader: Any) -> list[Different]:
    """This rank's share of the present pass."""
    found = getattr(loader, "telling_digest", lambda: None)()
    return [Different("the share of the data", found, "Ranks would train on the same samples.")]


class TrainedBatches:
    """What this rank has trained on since `begin`: numbers, and whether it was one batch only."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forgets what was seen."""
        self.batches = self.samples = self.repeats = 0
        self._first: bytes | None = None
        self._same = True

    def see(self, batch: Any) -> None:
        """Notes a batch that is about to be trained on, as the loader gave it."""
        index = batch.get("index") if isinstance(batch, Mapping) else None
        actions = batch.get("actions") if isinstance(batch, Mapping) else None
        self.batches += 1
        self.samples += len(actions) if hasattr(actions, "__len__") else 0
        if index is None or not hasattr(index, "__len__"):
            self._same = False
            return
        present = np.asarray(index).tobytes()
        if self._first is None:
            self._first = present
        elif present == self._first:
            self.repeats += len(index)
        else:
            self._same = False

    def items(self) -> dict[str, Hashable]:
        """Every rank trains on as many batches and samples."""
        return {
            "number of training batches in the epoch": self.batches,
            "number of training samples in the epoch": self.samples,
        }

    def complaints(self, loader: Any) -> list[str]:
        """One batch over and over, although a pass holds every sample once."""
        if not (self._same and self.repeats >= _REPEATS_THAT_TELL and _without_repeats(loader)):
            return []
        return [
            f"all {self.batches} batches of the epoch were the same samples, although the order of "
            "the data has each once in a pass: the iterator stands still, or a batch is kept."
        ]


def _without_repeats(loader: Any) -> bool:
    """Whether the loader is known to give each sample once in a pass, and has several batches."""
    return bool(getattr(loader, "each_sample_once", False)) and (length(loader) or 0) > 1
