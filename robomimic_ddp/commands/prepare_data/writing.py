"""Reads episodes, encodes their images again at the prepared size, and writes record files.

An episode is a tf.train.Example. Only its images are replaced; everything else stays as stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np

from robomimic_ddp.commands.prepare_data.job import Job, RecordFile
from robomimic_ddp.data.rlds.index.example import EpisodeParser, parsed_example
from robomimic_ddp.data.rlds.index.records import (
    FRAMING_BYTES,
    offsets_of,
    record_writer,
    rows_of,
)
from robomimic_ddp.data.rlds.pipeline.images import (
    RecordError,
    decode_resized,
    encode_jpeg,
)


def write_all(job: Job, files: Sequence[RecordFile], add: Callable[[int], Any]) -> None:
    """Write the prepared `files`, and note each as it is finished. add: is called with numbers of
    source bytes that were read. Raises DataError for a damaged file, WriteError.
    """
    offsets = [offsets_of(file.path, file.episodes, job.skip_corrupt) for file in files]
    positions = [(number, offset) for number, of_file in enumerate(offsets) for offset in of_file]
    paths = [file.path for file in files]
    doing, names = f"preparing {job.source.folder}; finished files are kept", _features_read(job)
    options = (job.threads, doing, job.skip_corrupt, "--skip-corrupt")
    rows = rows_of(paths, positions, _preparer(job, names), *options)
    by_file = groupby(rows, itemgetter(0))
    current, rows_of_file = next(by_file, (None, ()))
    for number, file in enumerate(files):
        # Finish a file before the first row of the next, which may be damaged, is read.
        episodes = islice(rows_of_file, len(offsets[number])) if number == current else ()
        _write(job, file, offsets[number], episodes, add)
        if number == current:
            current, rows_of_file = next(by_file, (None, ()))


def _write(
    job: Job, file: RecordFile, offsets: list[int], rows: Iterable[tuple], add: Callable[[int], Any]
) -> None:
    """Write a file from its `rows`, and note it."""
    written, read = 0, set()
    with record_writer(job.work / file.path.name) as put:
        for _, offset, size, raw, images in rows:
            data = _rewritten(raw, dict(zip(job.changed, images)), job.dropped)
            put(data)
            written += len(data) + FRAMING_BYTES
            read.add(int(offset))
            add(int(size) + FRAMING_BYTES)
    left_out = [number for number, offset in enumerate(offsets) if offset not in read]
    left_out += range(len(offsets), file.episodes)
    job.finish(file, {"episodes": len(read), "bytes": written, "left_out": left_out})


def _preparer(job: Job, names: Sequence[str]) -> Callable[[bytes], tuple]:
    """Return a function that maps a serialized episode to that and the new images [T] of each of
    `job.changed`. names: the step features to read. With `job.skip_corrupt` images of the right
    size are decoded too, since they may be damaged.
    """
    unchanged = sorted({*job.cameras} - {*job.changed}) if job.skip_corrupt else ()
    parse = EpisodeParser(job.source.features, names)

    def frames_of(episode: Mapping[str, Any], name: str) -> Iterator[np.ndarray]:
        """Yield the resized frames, in the same memory."""
        frame = np.empty((*job.size, 3), np.uint8)
        for step, data in enumerate(episode[name]):
            try:
                decode_resized(data, job.stored[name], job.size, frame)
            except RecordError as error:
                raise RecordError(f"step {step}, `{name}` cannot be decoded: {error}") from error
            yield frame

    def prepare(raw: bytes) -> tuple:
        episode = parse(raw)
        for name in unchanged:
            for _ in frames_of(episode, name):
                pass
        return raw, [
            [encode_jpeg(frame, job.quality) for frame in frames_of(episode, name)]
            for name in job.changed
        ]

    return prepare


def _rewritten(raw: bytes, images: Mapping[str, Sequence[bytes]], dropped: Sequence[str]) -> bytes:
    """Return the record with new `images` for some step features, without the `dropped` ones."""
    example = parsed_example(raw)
    features = example.features.feature
    for name, frames in images.items():
        features[f"steps/{name}"].bytes_list.value[:] = frames
    for name in dropped:
        if f"steps/{name}" in features:
            del features[f"steps/{name}"]
    return example.SerializeToString(deterministic=True)  # a file written again has the same bytes


def _features_read(job: Job) -> list[str]:
    """Return the names of the kept cameras and of the kept step features of a fixed shape."""
    fixed = [name for name, feature in job.source.steps.items() if None not in feature.shape]
    return sorted({*fixed, *job.cameras} - {*job.dropped})
