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
from robomimic_ddp.distributed import rng
from robomimic_ddp.files import opened
from robomimic_ddp.verify.comparison import Different
from robomimic_ddp.verify.tensor_checksums import digest

_FILES, _BLOCKS, _BLOCK_BYTES = 64, 16, 4096
"""Most files of a dataset that are sampled, blocks in each, bytes of a block."""
HINTS = {
    "train ": "Every rank must read the same data, with the same normalisation and number of "
    "batches: copies on nodes must be equal, and nothing before the loader may depend on the rank.",
    "number of training": "Every rank must train on each batch that its loader gives it.",
    "the order of": "The host's sampler draws from a separate generator that differs by rank, so "
    "samples would be repeated and missed. Seed it with train.seed.",
}
_REPEATS_THAT_TELL = 10
"""Repeated samples that are not due to chance (below 1e-9) where a pass has no sample twice."""
_FIRST_BATCHES = 4
"""A host may take a batch or two before it trains."""


def loader_items(loader: Any) -> dict[str, Hashable]:
    """Sizes of the loader and its dataset, digests of its normalisation and of its files."""
    if loader is None:
        return {}
    dataset = getattr(loader, "dataset", None)
    items: dict[str, Hashable] = {"train dataset: number of samples": length(dataset)}
    for name, values in statistics(dataset).items():
        items[f"train dataset: {name}"] = None if values is None else digest(values)
    items["train dataset: bytes of its files"] = fingerprint(dataset)
    items["train loader"] = type(loader).__name__
    items["train loader: batch size"] = getattr(loader, "batch_size", None)
    items["train loader: number of batches"] = length(loader)
    return items


def statistics(dataset: Any) -> dict[str, Any]:
    """Return name -> normalisation statistics of the dataset, or None."""
    names = ("action_normalization_stats", "obs_normalization_stats")
    by_name = {name: getattr(dataset, name, None) for name in names}
    for name in names if hasattr(dataset, "is_rlds") else ():  # ours: from the index
        if by_name[name] is None:
            by_name[name] = getattr(dataset, f"get_{name}", lambda: None)()
    return by_name


def length(sized: Any) -> int | None:
    """`len(sized)`; None without one, or if it raises, as that of DROID's RLDS dataset does."""
    try:
        return len(sized)
    except Exception:
        return None


def files_of(dataset: Any) -> Iterator[Path]:
    """Yield the files that a dataset reads: HDF5, mixtures of those, RLDS."""
    for part in getattr(dataset, "datasets", None) or ():
        yield from files_of(part)
    path = getattr(dataset, "hdf5_path", None)
    if path is not None:
        yield paths.expanded(path)
    yield from (Path(str(file)) for file in getattr(getattr(dataset, "source", None), "files", ()))


def fingerprint(dataset: Any) -> str | None:
    """Return the digest of the sizes of the files and of samples of their bytes, since nodes may
    have separate copies; None if no file is known. Reads at most 4 MB. An unreadable file counts by
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
            with opened(files[number]) as file:
                for block in range(_BLOCKS):
                    file.seek(block * max(0, size - _BLOCK_BYTES) // (_BLOCKS - 1))
                    total.update(file.read(_BLOCK_BYTES))
        except OSError as error:
            total.update(f"{number}:{type(error).__name__}".encode())
    return total.hexdigest()


def order_items(loader: Any) -> dict[str, Hashable]:
    """Return the order of the current pass, which is equal on all ranks."""
    if not hasattr(loader, "order_digest"):
        return {}
    return {"the order of the present pass over the data": loader.order_digest()}


def share(loader: Any) -> list[Different]:
    """This rank's share of the current pass."""
    share_digest = getattr(loader, "telling_digest", lambda: None)()
    return [
        Different("the share of the data", share_digest, "Ranks would train on the same samples.")
    ]


class TrainedBatches:
    """Batches of this rank since `begin`: their number, and those that are the one before again."""

    first: FirstBatch | None = None
    """The first batch of all."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Resets the counters."""
        self.batches = self.samples = self.repeats = 0
        self._latest: bytes | None = None
        self._same = True

    def see(self, batch: Any) -> None:
        """Records a batch of the loader, before it is trained on."""
        index, actions = _columns(batch)
        if self.first is None:
            self.first = FirstBatch(index, actions)
        self.batches += 1
        self.samples += len(actions) if hasattr(actions, "__len__") else 0
        if index is None:
            self._same = False
            return
        present = index.tobytes()
        if present == self._latest:
            self.repeats += len(index)
        elif self._latest is not None:
            self._same = False
        self._latest = present

    def items(self) -> dict[str, Hashable]:
        """Return the numbers of batches and samples, which are equal on all ranks."""
        return {
            "number of training batches in the epoch": self.batches,
            "number of training samples in the epoch": self.samples,
            "number of training samples of repeated batches": (
                self.repeats if self.repeats >= _REPEATS_THAT_TELL else 0
            ),
        }

    def complaints(self, loader: Any) -> list[str]:
        """Return a line if the same batch is repeated although a pass has every sample once."""
        if not (self._same and self.repeats >= _REPEATS_THAT_TELL and (length(loader) or 0) > 1):
            return []
        if not getattr(loader, "each_sample_once", False):
            return []
        return [
            f"all {self.batches} batches of the epoch were the same samples, although a pass has "
            "every sample once: the iterator stands still, or a batch is kept."
        ]


class FirstBatch:
    """Which samples a rank trained on first; `index`, `actions`: those of its batch, or None."""

    def __init__(self, index: np.ndarray | None, actions: Any) -> None:
        self._index = None if index is None else index.copy()
        rows = _on_cpu(actions) if hasattr(actions, "__len__") else ()
        self._rows = tuple(digest(np.asarray(row)) for row in rows)

    def different(self) -> list[Different]:
        """Its samples, which no other rank has; unknown where they could agree by chance."""
        index = () if self._index is None else self._index.tolist()
        samples = (index, self._rows)
        is_telling = max(len(set(column)) for column in (index, self._rows)) >= _REPEATS_THAT_TELL
        cause = "Every rank must train on its loader's batches: another one replaced this rank's."
        return [Different("the first batch", digest(samples) if is_telling else None, cause)]

    def complaints(self, loader: Any) -> list[str]:
        """Return a line if most of its samples are those that the loader gave in one of its first
        batches, and some are not. Where most are not, or a sample that is read again has another
        index, too, the dataset numbers its samples in another way.
        """
        share = getattr(loader, "share_of_pass", None)
        if share is None or self._index is None or self._index.ndim != 1:
            return []
        count = len(self._index)
        batches = [
            share[start : start + count] for start in range(0, _FIRST_BATCHES * count, count)
        ]
        batches = [batch for batch in batches if len(batch) == count]
        if not batches:
            return []
        closest = max(batches, key=lambda batch: sum(batch == self._index))
        best = closest == self._index
        if not max(2, count // 2) <= sum(best) < count:
            return []
        wrong = int(np.flatnonzero(~best)[0])
        if _has_another_index(getattr(loader, "dataset", None), int(closest[wrong])):
            return []
        return [
            f"sample {wrong} of the first batch has index {self._index[wrong]}, which is not the "
            f"one that the loader gave ({count - sum(best)} of {count} are not): it was replaced "
            "after the loader. Ranks would train on some samples twice and miss others."
        ]


def _has_another_index(dataset: Any, position: int) -> bool:
    """Return whether the sample at `position` says that it is at another one, as those of datasets
    in torch's ConcatDataset and Subset do. Reads it, without a change to the random states.
    """
    streams = rng.capture()
    try:
        return int(dataset[position]["index"]) != position
    except Exception:  # of the host's code
        return False
    finally:
        rng.restore(streams)


def _columns(batch: Any) -> tuple[np.ndarray | None, Any]:
    """Return the samples' numbers in the dataset, and their actions."""
    if not isinstance(batch, Mapping):
        return None, None
    index = batch.get("index")
    index = np.asarray(_on_cpu(index)) if hasattr(index, "__len__") else None
    return index, batch.get("actions")


def _on_cpu(array: Any) -> Any:
    return array.detach().cpu() if hasattr(array, "detach") else array
