"""Makes the index of a data set by reading every record once; pictures stay encoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.actions import action_vectors
from robomimic_ddp.rlds.records import (
    FRAMING_BYTES,
    damaged_data,
    episode_parser,
    raw_records,
    step_features_read,
)
from robomimic_ddp.rlds.schema import SUCCESS_PATTERN, Fields
from robomimic_ddp.rlds.source import Source
from robomimic_ddp.rlds.statistics import Index, Moments, moments
from robomimic_ddp.rlds.tf_import import import_tensorflow

READING_THREADS = 2


def make_index(source: Source, fields: Fields) -> Index:
    """Reads every record of `source`. Raises DataError naming a damaged or short file, or a NaN's
    episode.
    """
    rows: list[tuple] = []
    tf = import_tensorflow()
    try:
        rows.extend(_episodes(source, fields))
    except tf.errors.OpError as error:
        raise damaged_data(error, source.files, f"making the index of {source.folder}") from error
    columns = [np.stack(column) for column in zip(*rows)] if rows else []
    found = (
        np.bincount(columns[0], minlength=len(source.files))
        if rows
        else np.zeros(len(source.files), int)
    )
    short = np.flatnonzero(found != np.asarray(source.episodes_per_file))
    if len(short):
        first = int(short[0])
        raise DataError(
            f"{source.files[first]} holds {found[first]} episodes, its metadata promises "
            f"{source.episodes_per_file[first]}: cut off, or still being written. Copy it again."
        )
    index = Index(*columns[:5], Moments(*columns[5:9]), Moments(*columns[9:13]))
    _check_finite(index, source)
    return index


def _check_finite(index: Index, source: Source) -> None:
    for what, of_kind in (("action", index.actions), ("state", index.states)):
        broken = np.flatnonzero(~np.isfinite(of_kind.mean).all(1))
        if len(broken):
            file = source.files[index.file[broken[0]]]
            raise DataError(
                f"{len(broken)} episodes of {source.folder} have a NaN or infinite {what}; the "
                f"first is the one at byte {index.offset[broken[0]]} of {file.name}. Training on "
                "it would end in NaN."
            )


def _episodes(source: Source, fields: Fields) -> Iterator[tuple]:
    """One row of numpy values per episode, in file order; see `Index` for the columns."""
    tf = import_tensorflow()
    parse = episode_parser(source.features, step_features_read(fields, False), fields.has_file_path)

    def describe(file: Any, size: Any, serialized: Any) -> tuple:
        episode = parse(serialized)
        actions = action_vectors(episode, fields.actions)
        length = tf.shape(actions)[0]
        states = [
            tf.reshape(tf.cast(episode[place], tf.float32), [length, -1])
            for place in fields.low_dim.values()
        ]
        state = tf.concat(states, -1) if states else tf.zeros([length, 0])
        labelled = tf.constant(False)
        if fields.language:
            labelled = tf.reduce_any(tf.strings.length(episode[fields.language]) > 0)
        success = tf.constant(True)
        if fields.has_file_path:
            success = tf.strings.regex_full_match(episode["file_path"], SUCCESS_PATTERN)
        return (file, size, length, labelled, success, *moments(actions), *moments(state))

    def read_file(number: Any, name: Any) -> Any:
        return raw_records(name, tf.constant(0, tf.int64)).map(
            lambda serialized: (number, tf.strings.length(serialized), serialized)
        )

    names = [str(path) for path in source.files]
    records = tf.data.Dataset.from_tensor_slices((np.arange(len(names)), names)).flat_map(read_file)
    described = records.map(
        describe, num_parallel_calls=READING_THREADS, deterministic=True
    ).prefetch(2)
    offset, last_file = 0, -1
    for file, size, *rest in described.as_numpy_iterator():
        offset = 0 if file != last_file else offset
        yield (file, np.int64(offset), *rest)
        offset, last_file = offset + int(size) + FRAMING_BYTES, file
