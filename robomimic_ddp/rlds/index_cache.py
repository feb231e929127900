"""The index of a data set, kept in a cache folder under the data set's fingerprint.

Filters and the validation split only select rows of it, so changing them costs no second reading.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from pathlib import Path

import numpy as np

from robomimic_ddp.rlds.index_reader import make_index
from robomimic_ddp.rlds.schema import Fields
from robomimic_ddp.rlds.source import Source
from robomimic_ddp.rlds.statistics import Index, Moments

logger = logging.getLogger(__name__)
INDEX_VERSION = 1
"""Raised whenever what is stored, or how an action is computed, changes: old caches then stay
unused.
"""
DEFAULT_CACHE = "~/.cache/robomimic_ddp/rlds"


def fingerprint(source: Source, fields: Fields) -> str:
    """Names the index: equal for equal files (names, sizes, version), fields and transform."""
    described = {
        "index": INDEX_VERSION,
        "data set": source.name,
        "files": [(path.name, path.stat().st_size) for path in source.files],
        "metadata": hashlib.sha256((source.folder / "features.json").read_bytes()).hexdigest(),
        "actions": [(key, asdict(part)) for key, part in fields.actions.items()],
        "states": list(fields.low_dim.items()),
        "language": fields.language,
    }
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:24]


def load_index(source: Source, fields: Fields, cache: str | None) -> Index:
    """The index from the cache folder, else made now and stored there. Not collective: call it on
    the main rank.

    Several jobs may do this at once: each writes a file of its own and renames it. Raises
    DataError.
    """
    folder = Path(cache or DEFAULT_CACHE).expanduser()
    path = folder / f"{source.folder.parent.name}-{fingerprint(source, fields)}.npz"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    # A damaged cache is no reason to stop: it is made again. np.load raises many things for one.
    except Exception as error:
        logger.warning("the cached index %s cannot be read (%s): it is made again", path, error)
    logger.info(
        "reading %s once for its index and statistics (%d files)", source.folder, len(source.files)
    )
    index = make_index(source, fields)
    try:
        _store(index, path)
    except OSError as error:
        logger.warning(
            "the index of %s cannot be kept in %s (%s): every run will read the data set once "
            "more; set train.data_cache_dir to a writable folder",
            source.name,
            folder,
            error,
        )
    return index


def _store(index: Index, path: Path) -> None:
    arrays = {
        f"episode.{name}": value
        for name, value in vars(index).items()
        if isinstance(value, np.ndarray)
    }
    for group in ("actions", "states"):
        arrays.update(
            {f"{group}.{key}": value for key, value in vars(getattr(index, group)).items()}
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _read(path: Path) -> Index:
    with np.load(path, allow_pickle=False) as arrays:
        groups = {
            group: Moments(*(arrays[f"{group}.{f.name}"] for f in dataclass_fields(Moments)))
            for group in ("actions", "states")
        }
        plain = {
            f.name: arrays[f"episode.{f.name}"]
            for f in dataclass_fields(Index)
            if f.name not in groups
        }
        return Index(**plain, **groups)
