"""The index of a data set: where each episode lies, how long it is, its actions' and states' statistics.

Made once by reading every record (pictures stay encoded), kept in a cache folder under the data set's fingerprint.
Filters and the validation split only select rows of it, so changing them costs no second reading.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict, dataclass, fields as dataclass_fields
from pathlib import Path
from typing import Any, Iterator

import numpy as np

from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.actions import action_vectors
from robomimic_ddp.rlds.records import (
    FRAMING_BYTES, damaged_data, episode_parser, raw_records, step_features_read,
)
from robomimic_ddp.rlds.schema import SUCCESS_PATTERN, Fields
from robomimic_ddp.rlds.source import Source
from robomimic_ddp.rlds.tf_import import import_tensorflow

logger = logging.getLogger(__name__)
INDEX_VERSION = 1
"""Raised whenever what is stored, or how an action is computed, changes: old caches are then left alone."""
DEFAULT_CACHE = "~/.cache/robomimic_ddp/rlds"


@dataclass(frozen=True)
class Moments:
    """Per episode and dimension: mean, sum of squared differences from it, min, max; float64 [E, D] each."""

    mean: np.ndarray
    sqdiff: np.ndarray
    min: np.ndarray
    max: np.ndarray

    def merged(self, lengths: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The statistics of all steps of the episodes `rows`: n, and mean, sqdiff, min, max as [1, D].

        Exact merging of the parts (Chan, Golub, LeVeque 1979), as the host merges its trajectories.
        """
        n = lengths[rows].astype(np.float64)[:, None]
        mean = (self.mean[rows] * n).sum(0) / n.sum()
        sqdiff = self.sqdiff[rows].sum(0) + (n * (self.mean[rows] - mean) ** 2).sum(0)
        return {"n": int(n.sum()), "mean": mean[None], "sqdiff": sqdiff[None],
                "min": self.min[rows].min(0)[None], "max": self.max[rows].max(0)[None]}


@dataclass(frozen=True)
class Index:
    """Every episode of a data set, in file order. All arrays have one row per episode.

    file: number in Source.files; offset: byte where its record starts; length: steps; labelled: has a language
    instruction; success: its file_path says so; actions [E, A], states [E, S]: Moments.
    """

    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    labelled: np.ndarray
    success: np.ndarray
    actions: Moments
    states: Moments


def fingerprint(source: Source, fields: Fields) -> str:
    """Names the index: equal for equal files (names, sizes, version), fields and action transform."""
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
    """The index from the cache folder, else made now and stored there. Not collective: call it on the main rank.

    Several jobs may do this at once: each writes a file of its own and renames it. Raises DataError.
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
    logger.info("reading %s once for its index and statistics (%d files)", source.folder, len(source.files))
    index = make_index(source, fields)
    try:
        _store(index, path)
    except OSError as error:
        logger.warning("the index of %s cannot be kept in %s (%s): every run will read the data set once more; "
                       "set train.data_cache_dir to a writable folder", source.name, folder, error)
    return index


def make_index(source: Source, fields: Fields) -> Index:
    """Reads every record of `source`. Raises DataError naming a damaged or short file, or a NaN's episode."""
    rows: list[tuple] = []
    tf = import_tensorflow()
    try:
        rows.extend(_episodes(source, fields))
    except tf.errors.OpError as error:
        raise damaged_data(error, source.files, f"making the index of {source.folder}") from error
    columns = [np.stack(column) for column in zip(*rows)] if rows else []
    found = np.bincount(columns[0], minlength=len(source.files)) if rows else np.zeros(len(source.files), int)
    short = np.flatnonzero(found != np.asarray(source.episodes_per_file))
    if len(short):
        first = int(short[0])
        raise DataError(f"{source.files[first]} holds {found[first]} episodes, its metadata promises "
                        f"{source.episodes_per_file[first]}: cut off, or still being written. Copy it again.")
    index = Index(*columns[:5], Moments(*columns[5:9]), Moments(*columns[9:13]))
    _check_finite(index, source)
    return index


def _check_finite(index: Index, source: Source) -> None:
    for what, moments in (("action", index.actions), ("state", index.states)):
        broken = np.flatnonzero(~np.isfinite(moments.mean).all(1))
        if len(broken):
            file = source.files[index.file[broken[0]]]
            raise DataError(f"{len(broken)} episodes of {source.folder} have a NaN or infinite {what}; the first is "
                            f"the one at byte {index.offset[broken[0]]} of {file.name}. Training on it would end in NaN.")


def _episodes(source: Source, fields: Fields) -> Iterator[tuple]:
    """One row of numpy values per episode, in file order; see `Index` for the columns."""
    tf = import_tensorflow()
    parse = episode_parser(source.features, step_features_read(fields, False), fields.has_file_path)

    def describe(file: Any, size: Any, serialized: Any) -> tuple:
        episode = parse(serialized)
        actions = action_vectors(episode, fields.actions)
        length = tf.shape(actions)[0]
        states = [tf.reshape(tf.cast(episode[place], tf.float32), [length, -1]) for place in fields.low_dim.values()]
        state = tf.concat(states, -1) if states else tf.zeros([length, 0])
        labelled = tf.constant(False)
        if fields.language:
            labelled = tf.reduce_any(tf.strings.length(episode[fields.language]) > 0)
        success = tf.constant(True)
        if fields.has_file_path:
            success = tf.strings.regex_full_match(episode["file_path"], SUCCESS_PATTERN)
        return (file, size, length, labelled, success, *_moments(actions), *_moments(state))

    def read_file(number: Any, name: Any) -> Any:
        return raw_records(name, tf.constant(0, tf.int64)).map(
            lambda serialized: (number, tf.strings.length(serialized), serialized))

    names = [str(path) for path in source.files]
    records = tf.data.Dataset.from_tensor_slices((np.arange(len(names)), names)).flat_map(read_file)
    described = records.map(describe, num_parallel_calls=2, deterministic=True).prefetch(2)
    offset, last_file = 0, -1
    for file, size, *rest in described.as_numpy_iterator():
        offset = 0 if file != last_file else offset
        yield (file, np.int64(offset), *rest)
        offset, last_file = offset + int(size) + FRAMING_BYTES, file


def _moments(values: Any) -> tuple:
    """TensorFlow: [T, D] -> mean, sqdiff, min, max, float64 [D] each; zeros and infinities for T = 0."""
    tf = import_tensorflow()
    values = tf.cast(values, tf.float64)
    n = tf.cast(tf.maximum(tf.shape(values)[0], 1), tf.float64)
    mean = tf.reduce_sum(values, 0) / n
    return (mean, tf.reduce_sum((values - mean) ** 2, 0), tf.reduce_min(values, 0), tf.reduce_max(values, 0))


def _store(index: Index, path: Path) -> None:
    arrays = {f"episode.{name}": value for name, value in vars(index).items() if isinstance(value, np.ndarray)}
    for group in ("actions", "states"):
        arrays.update({f"{group}.{key}": value for key, value in vars(getattr(index, group)).items()})
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
        plain = {f.name: arrays[f"episode.{f.name}"] for f in dataclass_fields(Index) if f.name not in groups}
        return Index(**plain, **groups)
