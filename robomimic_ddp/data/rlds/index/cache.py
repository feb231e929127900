"""The index of a dataset, kept in a cache folder under the dataset's fingerprint.

Filters and the validation split only select rows of it, so changing them needs no second reading.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import env
from robomimic_ddp.data import array_cache
from robomimic_ddp.data.rlds.index.build import (
    files_of_rank,
    left_out,
    make_index,
    missing_episodes,
)
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.index.statistics import Index, Moments, merged
from robomimic_ddp.data.rlds.schema.fields import Fields
from robomimic_ddp.data.rlds.schema.filters import require_patterns
from robomimic_ddp.distributed import group

logger = logging.getLogger(__name__)
INDEX_VERSION = 3
"""Raised when the stored data, or how an action is computed, changes. Old caches are then
ignored.
"""
_GROUPS = ("actions", "states")
_MOST_THREADS = 8
"""More are limited by the disk."""


def fingerprint(source: Source, fields: Fields, skip_corrupt: bool = False) -> str:
    """Key of the index: a digest of files (names, sizes, version, checksums of some records),
    fields and transform.
    """
    described = {
        "index": INDEX_VERSION,
        **identity(source),
        "actions": [(key, asdict(part)) for key, part in fields.actions.items()],
        "states": [(key, asdict(part)) for key, part in fields.low_dim.items()],
        "success": asdict(fields.success) if fields.success else None,
        "filters": [asdict(one) for one in fields.filters],
        "language": fields.language,
        "skip_corrupt": skip_corrupt,
    }
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:24]


def identity(source: Source) -> dict[str, Any]:
    """What differs between datasets on disk, and after one is prepared again: plain values."""
    return {
        "data\x20set": source.name,  # spelled as in existing caches
        "files": [(path.name, size) for path, size in zip(source.files, source.sizes)],
        "checksums": source.checksums,
        "metadata": hashlib.sha256((source.folder / "features.json").read_bytes()).hexdigest(),
    }


def load_index(
    source: Source, fields: Fields, cache: str | None, skip_corrupt: bool = False
) -> Index:
    """Collective: the index from the main rank's cache folder, or a new one, which is stored there.

    Each rank reads its share of the files, and waits for the others without ddp.timeout. Several
    jobs may do this at once: each writes a temporary file and renames it. Raises ConfigError for a
    filter that TensorFlow cannot apply, and the DataError of the first rank that has one on every
    rank. With `skip_corrupt` the main rank reports what is left out.
    """
    require_patterns([*fields.filters, fields.success])
    path = (
        array_cache.cache_folder(cache)
        / f"{source.folder.parent.name}-{fingerprint(source, fields, skip_corrupt)}.npz"
    )
    cached = array_cache.read(path, "index", _index_of) if group.is_main() else None
    if cached is not None and skip_corrupt and _may_be_repaired(cached, source, path):
        cached = None
    index = group.broadcast_object(cached)
    if index is None:
        index = _made_together(source, fields, skip_corrupt)
        if group.is_main():
            array_cache.keep(path, "index", _arrays(index))
    lost = left_out(index, source) if skip_corrupt and group.is_main() else None
    if lost:
        print(f"warning: {lost}", file=sys.stderr)
    return index


def _made_together(source: Source, fields: Fields, skip_corrupt: bool) -> Index:
    """Collective: the index of all files, each rank reading its share."""
    if group.is_main():
        logger.info("reading %s for its index (%d files)", source.folder, len(source.files))
    cores = env.share_of_cores(env.own_cores(), group.cores_of_node())

    def own_part() -> Index:
        files = files_of_rank(source, group.rank(), group.world_size())
        more = {"show_progress": group.is_main(), "skip_corrupt": skip_corrupt}
        return make_index(source, fields, files, min(_MOST_THREADS, cores), **more)

    return merged(array_cache.made_together(own_part))


def _may_be_repaired(index: Index, source: Source, path: Path) -> bool:
    """Whether a file with episodes missing in the index changed after the index was written. By
    ctime, since copies may keep the original's mtime (`cp -p`, `rsync -a`).
    """
    made = path.stat().st_mtime
    files = [source.files[number] for number in np.flatnonzero(missing_episodes(index, source))]
    return any(file.is_file() and file.stat().st_ctime > made for file in files)


def _arrays(index: Index) -> dict[str, np.ndarray]:
    """The columns by their stored names: "episode.file", "actions.mean", ..."""
    columns = {f"episode.{name}": value for name, value in vars(index).items()}
    for kind in _GROUPS:
        moments = columns.pop(f"episode.{kind}")
        columns.update({f"{kind}.{name}": value for name, value in vars(moments).items()})
    return columns


def _index_of(arrays: dict[str, np.ndarray]) -> Index:
    def group(kind: str) -> dict[str, Any]:
        names = [name.partition(".") for name in arrays]
        return {name: arrays[f"{first}.{name}"] for first, _, name in names if first == kind}

    return Index(**group("episode"), **{kind: Moments(**group(kind)) for kind in _GROUPS})
