"""Fingerprints of a rank's data: files, loader, order of the pass, trained batches.

Attributes that a loader or dataset lacks are skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import paths
from robomimic_ddp.files import opened
from robomimic_ddp.verify.comparison import Different
from robomimic_ddp.verify.tensor_checksums import digest

_FILES, _BLOCKS, _BLOCK_BYTES = 64, 16, 4096
"""Most files of a dataset that are sampled, blocks in each, bytes of a block."""
HINTS = {
    "train ": "Every rank must read the same data, normalised alike, in as many batches: copies on "
    "nodes must be equal, and nothing before the loader may depend on the rank.",
    "number of training": "Every rank must train on each batch that its loader gives it.",
    "the order of": "The host's sampler draws from a separate generator that differs by rank, so "
    "samples would be repeated and missed. Seed it with train.seed.",
}
_REPEATS_THAT_TELL = 10
"""Repeated samples that are no chance (below 1e-9) if a pass has no sample twice."""


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
    """Name -> normalisation statistics of the dataset, or None."""
    names = ("action_normalization_stats", "obs_normalization_stats")
    found = {name: getattr(dataset, name, None) for name in names}
    for name in names if hasattr(dataset, "is_rlds") else ():  # ours: from the index
        if found[name] is None:
            found[name] = getattr(dataset, f"get_{name}", lambda: None)()
    return found


def length(sized: Any) -> int | None:
    """`len(sized)`; None without one, or if it raises, as that of DROID's RLDS dataset does."""
    try:
        return len(sized)
    except Exception:
        return None


def files_of(dataset: Any) -> Iterator[Path]:
    """The files that a dataset reads: HDF5, mixtures of those, RLDS."""
    for part in getattr(dataset, "datasets", None) or ():
        yield from files_of(part)
    path = getattr(dataset, "hdf5_path", None)
    if path is not None:
        yield paths.expanded(path)
    yield from (Path(str(file)) for file in getattr(getattr(dataset, "source", None), "files", ()))


def fingerprint(dataset: Any) -> str | None:
    """Digest of the sizes of the files and of samples of their bytes, since nodes may have separate
    copies; None if no file is known. Reads at most 4 MB. An unreadable file counts by its error.
    """
    files = list(files_of(dataset))
    if not files:
        return None
    total = hashlib.blake2b(f"{len(files)} files".encode(), digest_size=8)
    for number in sorted({round(i * (len(files) - 1) / (_FILES - 1)) for i in range(_FILES)}):
        try:
            size = files[number].stat().st_size
            total.update(f"{number}:{size}".encode())
            with opened(files[number]) as file:
                for block in range(_BLOCKS):
                    file.seek(block * max(0, size - _BLOCK_BYTES) // (_BLOCKS - 1))
                    total.update(file.read(_BLOCK_BYTES))
        except OSError as error:
            total.update(f"{number}:{type(error).__name__}".encode())
    return total.hexdigest()


def order_items(loader: Any) -> dict[str, Hashable]:
    """The order of the current pass, which is equal on all ranks."""
    found = getattr(loader, "order_digest", None)
    return {} if found is None else {"the order of the present pass over the data": found()}


def share(loader: Any) -> list[Different]:
    """This rank's share of the current pass."""
    found = getattr(loader, "telling_digest", lambda: None)()
    return [Different("the share of the data", found, "Ranks would train on the same samples.")]


class TrainedBatches:
    """Batches of this rank since `begin`: their number, and whether all were the same."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Resets the counters."""
        self.batches = self.samples = self.repeats = 0
        self._first: bytes | None = None
        self._same = True

    def see(self, batch: Any) -> None:
        """Records a batch of the loader, before it is trained on."""
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
        """Numbers of batches and samples, which are equal on all ranks."""
        return {
            "number of training batches in the epoch": self.batches,
            "number of training samples in the epoch": self.samples,
        }

    def complaints(self, loader: Any) -> list[str]:
        """A line if the same batch is repeated although a pass has every sample once."""
        if not (self._same and self.repeats >= _REPEATS_THAT_TELL and _without_repeats(loader)):
            return []
        return [
            f"all {self.batches} batches of the epoch were the same samples, although the order of "
            "the data has each once in a pass: the iterator stands still, or a batch is kept."
        ]


def _without_repeats(loader: Any) -> bool:
    """Whether the loader has each sample once in a pass, and several batches."""
    return bool(getattr(loader, "each_sample_once", False)) and (length(loader) or 0) > 1
