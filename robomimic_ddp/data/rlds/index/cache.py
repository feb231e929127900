"""The index of a dataset, kept in a cache folder under the dataset's fingerprint.

Filters and the validation split only select rows of it, so changing them needs no second reading.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import machine
from robomimic_ddp.data import array_cache
from robomimic_ddp.data.rlds.index.build import files_of_rank, left_out, make_index
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.index.statistics import Index, Moments, merged
from robomimic_ddp.data.rlds.reading_progress import reading
from robomimic_ddp.data.rlds.schema.fields import Fields
from robomimic_ddp.distributed import group
from robomimic_ddp.terminal import warn

logger = logging.getLogger(__name__)
INDEX_VERSION = 5
"""Raised when the stored data, or how an action is computed, changes: old caches are ignored."""
_GROUPS = ("actions", "states")
_FILES = "files"
_PART_BYTES = 2**30
"""Bytes of record files in a part of the index, which a stopped job does not read again."""
_MOST_THREADS = 8
"""More are limited by the disk."""


def fingerprint(identity: Mapping[str, Any], fields: Fields, skip_corrupt: bool = False) -> str:
    """Return the key of the index: a digest of `Source.identity`, fields and transform."""
    described = {
        "index": INDEX_VERSION,
        **identity,
        "actions": [(key, asdict(part)) for key, part in fields.actions.items()],
        "states": [(key, asdict(part)) for key, part in fields.low_dim.items()],
        "success": asdict(fields.success) if fields.success else None,
        "filters": [asdict(condition) for condition in fields.filters],
        "language": fields.language,
        "skip_corrupt": skip_corrupt,
    }
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:24]


def load_index(
    source: Source, fields: Fields, cache: str | None, skip_corrupt: bool = False
) -> Index:
    """Collective: return the index from the main rank's cache folder, or make and store it there.

    Each rank reads its share of the files, and waits for the others without ddp.timeout. Several
    jobs may do this at once: each writes a temporary file and renames it. What a stopped job had
    read is kept in parts, and not read again. Raises the DataError of the first rank that
    has one on every rank. With `skip_corrupt` the main rank reports what is left out.
    """

    index: Index | None = None

    def find_cached() -> Path | None:
        nonlocal index
        if not group.is_main():
            return None
        path, index = _cached(source, fields, cache, skip_corrupt)
        return path

    path = array_cache.compute_together(find_cached)[0]
    index = group.broadcast_object(index)  # gathered, each rank would get as much of every rank
    if index is None:
        parts = path.with_suffix(".parts")
        index = _make_together(source, fields, skip_corrupt, parts)
        is_stored = group.is_main() and array_cache.store(path, "index", arrays_of(index))
        if group.broadcast_object(is_stored):  # a node may have a cache folder, with parts, alone
            shutil.rmtree(parts, ignore_errors=True)
    lost = left_out(index, source) if skip_corrupt and group.is_main() else None
    if lost:
        warn(f"{lost}. Remove {path} once they are repaired.")
    return index


def _cached(
    source: Source, fields: Fields, cache: str | None, skip_corrupt: bool
) -> tuple[Path, Index | None]:
    """Return the file of the index, and the index if that can be used."""
    name = f"{source.folder.parent.name}-{fingerprint(source.identity, fields, skip_corrupt)}.npz"
    path = array_cache.cache_folder(cache) / name
    return path, array_cache.read(path, "index", _index_of)


def _make_together(source: Source, fields: Fields, skip_corrupt: bool, parts: Path) -> Index:
    """Collective: return the index of all files. Each rank reads its share of those that are not
    among the `parts` that a rank finds in its folder, and stores new parts there.
    """
    if group.is_main():
        logger.info("reading %s for its index (%d files)", source.folder, len(source.files))
    cores = machine.share_of_cores(machine.own_cores(), group.cores_of_node())
    stored = dict(_read_parts(parts))
    # Ranks see the same parts, and jobs with other numbers of ranks store parts that overlap.
    reader: dict[tuple[int, ...], int] = {}
    done: set[int] = set()
    for rank, parts_of_rank in enumerate(group.gather_objects(sorted(stored))):
        for files in parts_of_rank:
            if done.isdisjoint(files):
                reader[files] = rank
                done.update(files)
    left = [number for number in range(len(source.files)) if number not in done]
    share = files_of_rank(left, source.sizes, group.rank(), group.world_size())

    def index_of_share() -> Index:
        indices = [index for files, index in stored.items() if reader.get(files) == group.rank()]
        cut = _cut(source, share)
        stores_parts = len(cut) > 1
        progress = reading(f"index of {source.name}", sum(source.sizes[number] for number in share))
        with progress if group.is_main() else nullcontext(lambda count: None) as add:
            for files in cut:
                threads = min(_MOST_THREADS, cores)
                indices.append(make_index(source, fields, files, threads, skip_corrupt, add))
                if stores_parts:
                    arrays = {**arrays_of(indices[-1]), _FILES: np.asarray(files)}
                    file = parts / f"{files[0]}.npz"
                    stores_parts = array_cache.store(file, "part of the index", arrays)
        return merged(indices)

    return merged(array_cache.compute_together(index_of_share))


def _cut(source: Source, files: Sequence[int]) -> list[list[int]]:
    """Return `files` in parts of about _PART_BYTES; at least one, perhaps empty."""
    before = np.cumsum([0, *(source.sizes[number] for number in files)])
    part = dict(zip(files, (before // _PART_BYTES).tolist()))
    return [list(group) for _, group in groupby(files, part.get)] or [[]]


def _read_parts(parts: Path) -> Iterator[tuple[tuple[int, ...], Index]]:
    """Yield (numbers of files, index) of a stopped job's parts."""

    def as_part(arrays: dict[str, np.ndarray]) -> tuple[tuple[int, ...], Index]:
        return tuple(arrays.pop(_FILES).tolist()), _index_of(arrays)

    for path in sorted(parts.glob("*.npz")):
        part = array_cache.read(path, "part of the index", as_part)
        if part is not None:
            yield part


def arrays_of(index: Index) -> dict[str, np.ndarray]:
    """Return the columns by their stored names: "episode.file", "actions.mean", ..."""
    columns = {f"episode.{name}": value for name, value in vars(index).items()}
    for kind in _GROUPS:
        moments = columns.pop(f"episode.{kind}")
        columns.update({f"{kind}.{name}": value for name, value in vars(moments).items()})
    return columns


def _index_of(arrays: dict[str, np.ndarray]) -> Index:
    def group(kind: str) -> dict[str, Any]:
        names = [name.partition(".") for name in arrays]
        return {name: arrays[f"{first}.{name}"] for first, _, name in names if first == kind}

    if len(set(map(len, arrays.values()))) > 1:  # numpy may stop before an archive's checksum
        raise ValueError("columns of unequal length")
    return Index(**group("episode"), **{kind: Moments(**group(kind)) for kind in _GROUPS})
