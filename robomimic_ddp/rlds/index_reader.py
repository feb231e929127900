"""Makes the index of record files by reading every record once; pictures stay encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from robomimic_ddp.rlds.statistics import (
    QUANTILE_STEPS,
    Index,
    Moments,
    moments,
    sampled_steps,
)
from robomimic_ddp.rlds.tf_import import import_tensorflow


def files_of_rank(source: Source, rank: int, world_size: int) -> list[int]:
    """The numbers of the files that `rank` indexes: stretches of about as many bytes each, over
    ranks disjoint and complete.
    """
    ends = np.cumsum([path.stat().st_size for path in source.files], dtype=np.float64)
    owner = np.minimum(ends * world_size / max(ends[-1], 1), world_size - 1e-9).astype(int)
    return np.flatnonzero(owner == rank).tolist()


def make_index(
    source: Source,
    fields: Fields,
    files: Sequence[int] | None = None,
    threads: int = 2,
    show_progress: bool = False,
) -> Index:
    """Reads every record of the `files` of `source` (all where None). Raises DataError naming a
    damaged or short file, or a NaN's episode.
    """
    files = range(len(source.files)) if files is None else files
    tf = import_tensorflow()
    try:
        rows = _episodes(source, fields, files, threads)
        if show_progress:
            rows = _with_bar(rows, source, files)
        rows = list(rows)
    except tf.errors.OpError as error:
        paths = [source.files[number] for number in files]
        raise damaged_data(error, paths, f"making the index of {source.folder}") from error
    _require_whole(source, files, rows)
    index = _as_index(rows, fields)
    _check_finite(index, source)
    return index


def _with_bar(rows: Iterable[tuple], source: Source, files: Sequence[int]) -> Iterable[tuple]:
    """A progress bar beside it, where there is a terminal."""
    from tqdm import tqdm

    total = sum(source.episodes_per_file[number] for number in files)
    return tqdm(rows, f"index of {source.name}", total, unit="episode", disable=None)


def _as_index(rows: list[tuple], fields: Fields) -> Index:
    """The rows of `_episodes` as columns."""
    if rows:
        columns = [np.stack(column) for column in zip(*rows)]
    else:
        states = sum(int(np.prod(shape)) for shape in fields.low_dim_shapes.values())
        none = [np.zeros(0, np.int64)] * 3 + [np.zeros(0, bool)] * 2
        sampled = np.zeros((0, QUANTILE_STEPS, fields.action_size), np.float32)
        action, state = np.zeros((0, fields.action_size)), np.zeros((0, states))
        columns = [*none, sampled, *[action] * 4, *[state] * 4]
    return Index(*columns[:6], Moments(*columns[6:10]), Moments(*columns[10:14]))


def _require_whole(source: Source, files: Sequence[int], rows: list[tuple]) -> None:
    """Raises DataError for a file with another number of episodes than its metadata promises."""
    found = dict.fromkeys(files, 0)
    for row in rows:
        found[int(row[0])] += 1
    for number in files:
        promised = source.episodes_per_file[number]
        if found[number] != promised:
            raise DataError(
                f"{source.files[number]} holds {found[number]} episodes, its metadata promises "
                f"{promised}: cut off, or still being written. Copy it again."
            )


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


def _episodes(
    source: Source, fields: Fields, files: Sequence[int], threads: int
) -> Iterator[tuple]:
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
        known = (file, size, length, labelled, success, sampled_steps(actions))
        return (*known, *moments(actions), *moments(state))

    def read_file(number: Any, name: Any) -> Any:
        return raw_records(name, tf.constant(0, tf.int64)).map(
            lambda serialized: (number, tf.strings.length(serialized), serialized)
        )

    if not len(files):
        return
    names = [str(source.files[number]) for number in files]
    numbers = np.asarray(files, np.int64)
    records = tf.data.Dataset.from_tensor_slices((numbers, names)).flat_map(read_file)
    described = records.map(describe, num_parallel_calls=threads, deterministic=True).prefetch(2)
    offset, last_file = 0, -1
    for file, size, *rest in described.as_numpy_iterator():
        offset = 0 if file != last_file else offset
        yield (file, np.int64(offset), *rest)
        offset, last_file = offset + int(size) + FRAMING_BYTES, file
