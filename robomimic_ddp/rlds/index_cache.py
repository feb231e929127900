"""The index of a data set, kept in a cache folder under the data set's fingerprint.

Filters and the validation split only select rows of it, so changing them costs no second reading.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import uuid
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from pathlib import Path

import numpy as np

from robomimic_ddp import env, group, paths
from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.filters import require_patterns
from robomimic_ddp.rlds.index_reader import (
    files_of_rank,
    left_out,
    make_index,
    missing_episodes,
)
from robomimic_ddp.rlds.schema import Fields
from robomimic_ddp.rlds.source import Source
from robomimic_ddp.rlds.statistics import Index, Moments, merged

logger = logging.getLogger(__name__)
INDEX_VERSION = 3
"""Raised whenever what is stored, or how an action is computed, changes: old caches then stay
unused.
"""
_MOST_THREADS = 8
"""Reading is bound by the disk beyond that."""
DEFAULT_CACHE = "~/.cache/robomimic_ddp/rlds"


def fingerprint(source: Source, fields: Fields, skip_corrupt: bool = False) -> str:
    """Names the index: equal for equal files (names, sizes, version, the checksums of some
    records), fields and transform.
    """
    described = {
        "index": INDEX_VERSION,
        "data set": source.name,
        "files": [(path.name, size) for path, size in zip(source.files, source.sizes)],
        "checksums": source.checksums,
        "metadata": hashlib.sha256((source.folder / "features.json").read_bytes()).hexdigest(),
        "actions": [(key, asdict(part)) for key, part in fields.actions.items()],
        "states": [(key, asdict(part)) for key, part in fields.low_dim.items()],
        "success": asdict(fields.success) if fields.success else None,
        "filters": [asdict(one) for one in fields.filters],
        "language": fields.language,
        "skip_corrupt": skip_corrupt,
    }
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:24]


def cache_folder(cache: str | None) -> Path:
    """The folder `cache`, or the one where none is named."""
    return paths.expanded(cache or DEFAULT_CACHE)


def load_index(
    source: Source, fields: Fields, cache: str | None, skip_corrupt: bool = False
) -> Index:
    """Collective: the index from the main rank's cache folder, else made now and stored there.

    Each rank reads its share of the files, and waits for the others as long as they live, whatever
    ddp.timeout says. Several jobs may do this at once: each writes a file of its own and renames
    it. Raises ConfigError for a filter that TensorFlow cannot apply, and DataError, that of the
    first rank that has one, on every rank. With `skip_corrupt` the main rank says what is left out.
    """
    require_patterns([*fields.filters, fields.success])
    path = (
        cache_folder(cache)
        / f"{source.folder.parent.name}-{fingerprint(source, fields, skip_corrupt)}.npz"
    )
    cached = _cached(path) if group.is_main() else None
    if cached is not None and skip_corrupt and _may_be_repaired(cached, source, path):
        cached = None
    index = group.broadcast_object(cached)
    if index is None:
        index = _made_together(source, fields, skip_corrupt)
        if group.is_main():
            _keep(index, path)
    lost = left_out(index, source) if skip_corrupt and group.is_main() else None
    if lost:
        print(f"warning: {lost}", file=sys.stderr)
    return index


def _made_together(source: Source, fields: Fields, skip_corrupt: bool) -> Index:
    """Collective: the index of all files, each rank reading its share."""
    if group.is_main():
        logger.info("reading %s for its index (%d files)", source.folder, len(source.files))
    cores = env.share_of_cores(env.own_cores(), group.cores_of_node())
    with group.without_time_limit() as waiting:
        own = _own_part(source, fields, skip_corrupt, min(_MOST_THREADS, cores))
        parts = group.gather_objects(own, within=waiting)
    for part in parts:
        if isinstance(part, DataError):
            raise part
    return merged(parts)


def _own_part(
    source: Source, fields: Fields, skip_corrupt: bool, threads: int
) -> Index | DataError:
    """The index of this rank's share of the files, or what is wrong with them."""
    rank, ranks = group.rank(), group.world_size()
    try:
        files = files_of_rank(source, rank, ranks)
        more = {"show_progress": group.is_main(), "skip_corrupt": skip_corrupt}
        return make_index(source, fields, files, threads, **more)
    except DataError as error:
        return error


def _cached(path: Path) -> Index | None:
    try:
        return _read(path)
    except FileNotFoundError:
        return None
    # A damaged cache is no reason to stop: it is made again. np.load raises many things for one.
    except Exception as error:
        logger.warning("the cached index %s cannot be read (%s): it is made again", path, error)
        return None


def _may_be_repaired(index: Index, source: Source, path: Path) -> bool:
    """Whether a file with episodes that the index leaves out was written after the index: by the
    time of its change here, since a copy keeps the time of its original (`cp -p`, `rsync -a`).
    """
    made = path.stat().st_mtime
    files = [source.files[number] for number in np.flatnonzero(missing_episodes(index, source))]
    return any(file.is_file() and file.stat().st_ctime > made for file in files)


def _keep(index: Index, path: Path) -> None:
    try:
        _store(index, path)
    except OSError as error:
        logger.warning(
            "the index %s cannot be kept (%s): every run will read the data set once more; set "
            "train.data_cache_dir to a writable folder",
            path,
            error,
        )


def _store(index: Index, path: Path) -> None:
    arrays = {
        f"episode.{name}": value
        for name, value in vars(index).items()
        if isinstance(value, np.ndarray)
    }
    for kind in ("actions", "states"):
        arrays.update({f"{kind}.{key}": value for key, value in vars(getattr(index, kind)).items()})
    write_arrays(path, arrays)


def _read(path: Path) -> Index:
    with np.load(paths.regular(path), allow_pickle=False) as arrays:
        groups = {
            kind: Moments(*(arrays[f"{kind}.{f.name}"] for f in dataclass_fields(Moments)))
            for kind in ("actions", "states")
        }
        plain = {
            f.name: arrays[f"episode.{f.name}"]
            for f in dataclass_fields(Index)
            if f.name not in groups
        }
        return Index(**plain, **groups)


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Replaces the npz file `path` in one step; several jobs may do so at once. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.part")
    # Not by tempfile, whose files other users of a shared folder may not read.
    file = open(temporary, "xb")
    try:
        with file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
