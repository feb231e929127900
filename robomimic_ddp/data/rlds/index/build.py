"""Make the index of record files by reading every record once, without decoding images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.index.example import EpisodeParser
from robomimic_ddp.data.rlds.index.records import (
    FRAMING_BYTES,
    offsets_of,
    record_offsets,
    rows_of,
    step_features_read,
)
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.index.statistics import (
    TEXT_END,
    Index,
    Moments,
    moments,
)
from robomimic_ddp.data.rlds.schema.actions import action_vectors, part_values
from robomimic_ddp.data.rlds.schema.fields import Fields
from robomimic_ddp.errors import DataError


def files_of_rank(
    files: Sequence[int], sizes: Sequence[int], rank: int, world_size: int
) -> list[int]:
    """Return those of the numbers `files` that `rank` indexes, about the same number of bytes for
    each rank. A file belongs to the rank that has its middle byte. sizes: of all files.
    """
    numbers = np.asarray(files, np.int64)
    sizes = np.asarray(sizes)[numbers]
    ends = np.cumsum(sizes)
    middles, total = ends - sizes / 2, max(sizes.sum(), 1)
    owner = np.minimum(middles * world_size / total, world_size - 1e-9).astype(int)
    return numbers[owner == rank].tolist()


def make_index(
    source: Source,
    fields: Fields,
    files: Sequence[int],
    threads: int,
    skip_corrupt: bool,
    add: Callable[[int], Any],
) -> Index:
    """Return the index of the `files` of `source`, `threads` files or records read at once. add:
    takes the numbers of bytes that were read. Raises DataError for a damaged or short file, or an
    episode with NaN; with `skip_corrupt` such episodes are left out.
    """
    paths = source.files

    def places_in(number: int) -> list[tuple[int, int]]:
        offsets = offsets_of(paths[number], source.episodes_per_file[number], skip_corrupt)
        return [(number, offset) for offset in offsets]

    with ThreadPoolExecutor(threads, "rlds-offsets") as pool:
        places = list(chain.from_iterable(pool.map(places_in, files)))
    doing = f"building the index of {source.folder}"
    rows = []
    for file, offset, size, *described in rows_of(
        paths, places, _describer(source, fields), threads, doing, skip_corrupt
    ):
        rows.append((file, offset, *described))
        add(int(size) + FRAMING_BYTES)
    index = _as_index(rows, fields)
    if skip_corrupt:
        return index.select(finite(index))
    _require_finite(index, source)
    return index


def finite(index: Index) -> np.ndarray:
    """Return the rows of episodes without NaN and infinity, int64."""
    kinds = (index.actions, index.states)
    return np.flatnonzero(np.all([np.isfinite(kind.mean).all(1) for kind in kinds], 0))


def missing_episodes(index: Index, source: Source) -> np.ndarray:
    """Return how many episodes of the metadata are not in the index: int64, per file."""
    indexed = np.bincount(index.file, minlength=len(source.files))
    return np.maximum(np.asarray(source.episodes_per_file) - indexed, 0)


def numbers_in_files(index: Index, source: Source) -> np.ndarray:
    """Return the number of each episode's record in its file, of the source for a prepared set:
    int64 from 0. Reads lengths in files with missing episodes. Raises DataError if one cannot be
    read.
    """
    numbers = np.arange(len(index.file)) - np.searchsorted(index.file, index.file)
    for file in np.flatnonzero(missing_episodes(index, source)):
        rows = np.flatnonzero(index.file == file)
        if len(rows):
            numbers[rows] = np.searchsorted(record_offsets(source.files[file]), index.offset[rows])
    for file, lost in source.left_out.items():
        rows = index.file == file
        every = np.arange(source.episodes_per_file[file] + len(lost))
        numbers[rows] = np.setdiff1d(every, lost)[numbers[rows]]
    return numbers


def left_out(index: Index, source: Source) -> str | None:
    """Return a line on episodes of the metadata that are not in the index, and their files."""
    missing = missing_episodes(index, source)
    if not missing.any():
        return None
    files = [f"{missing[n]} of {source.files[n]}" for n in np.flatnonzero(missing)[:10]]
    unnamed = int(np.count_nonzero(missing)) - len(files)
    return (
        f"ddp.skip_corrupt=true: {missing.sum()} of {sum(source.episodes_per_file)} episodes of "
        f"{source.name} are left out, as they are damaged, cut off, missing, of other features "
        "than the metadata's, or contain NaN or infinity: "
        + ", ".join(files)
        + (f", and some of {unnamed} more files" if unnamed else "")
    )


def _as_index(rows: Sequence[tuple], fields: Fields) -> Index:
    """Return rows (file, offset, and what `_describer` returns) as an Index."""
    if rows:
        columns = [np.stack(column) for column in zip(*rows)]
    else:
        states = sum(int(np.prod(shape)) for shape in fields.low_dim_shapes.values())
        none = [np.zeros(0, np.int64)] * 3 + [np.zeros(0, bool)] * 2 + [np.zeros(0, "S1")]
        none.append(np.zeros((0, len(fields.filters)), bool))
        action, state = np.zeros((0, fields.action_size)), np.zeros((0, states))
        columns = [*none, *[action] * 4, *[state] * 4]
    return Index(*columns[:7], Moments(*columns[7:11]), Moments(*columns[11:]))


def _require_finite(index: Index, source: Source) -> None:
    for what, of_kind in (("action", index.actions), ("state", index.states)):
        broken = np.flatnonzero(~np.isfinite(of_kind.mean).all(1))
        if len(broken):
            file = source.files[index.file[broken[0]]]
            raise DataError(
                f"{len(broken)} episodes of {source.folder} have a NaN or infinite {what}; the "
                f"first is the one at byte {index.offset[broken[0]]} of {file.name}. Training on "
                "it would end in NaN."
            )


def _describer(source: Source, fields: Fields) -> Callable[[bytes], tuple]:
    """Return a function: a serialized episode -> its row of the index, without file and offset."""
    names = {*step_features_read(fields, False), *fields.judged}
    parse = EpisodeParser(source.features, sorted(names))

    def row_of(serialized: bytes) -> tuple:
        episode = parse(serialized)
        actions = action_vectors(episode, fields.actions)
        length = len(actions)
        states = [part_values(episode, part) for part in fields.low_dim.values()]
        state = np.concatenate(states, 1) if states else np.zeros((length, 0), np.float32)
        labelled, texts = False, b""
        if fields.language:
            labelled = any(episode[fields.language])
            texts = TEXT_END.join(dict.fromkeys(episode[fields.language]))
        success = fields.success.accepts(episode) if fields.success else True
        passed = np.array([condition.accepts(episode) for condition in fields.filters], bool)
        known = (length, labelled, success, texts, passed)
        return (*known, *moments(actions), *moments(state))

    return row_of
