"""Reads episodes, encodes their images again at the prepared size, and writes record files.

An episode is a tf.train.Example: only its images are replaced, all else stays as stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from robomimic_ddp.commands.prepare_data.job import Job, RecordFile
from robomimic_ddp.data.rlds.index.build import describer
from robomimic_ddp.data.rlds.index.records import (
    FRAMING_BYTES,
    episode_parser,
    offsets_of,
    rows_of,
)
from robomimic_ddp.data.rlds.pipeline.images import decode_one
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.distributed.atomic_files import atomic_open, must_be_written

_HIGHEST_PSNR = 99.0
"""In dB, for an image whose pixels are equal."""


def write_all(job: Job, files: Sequence[RecordFile], add: Callable[[int], Any]) -> None:
    """Write the prepared `files` and note each that is finished. add: takes the numbers of source
    bytes that were read. Raises DataError for a damaged file, WriteError.
    """
    offsets = [offsets_of(file.path, file.episodes, job.skip_corrupt) for file in files]
    places = [(number, offset) for number, those in enumerate(offsets) for offset in those]
    paths = [file.path for file in files]
    doing, names = f"preparing {job.source.folder}; finished files are kept", _features_read(job)
    more = (job.threads, doing, names, job.skip_corrupt, "--skip-corrupt")
    rows = _Rows(rows_of(job.source.features, paths, places, _preparer(job, names), *more))
    for number, file in enumerate(files):
        _write(job, file, offsets[number], rows.of_file(number, len(offsets[number])), add)


class _Rows:
    """The rows of `read_records`, file by file."""

    def __init__(self, rows: Iterator[tuple]) -> None:
        self._rows = rows
        self._next: tuple | None = None

    def of_file(self, number: int, most: int) -> Iterator[tuple]:
        """Yield up to `most` rows of file `number`. Raises DataError for a damaged one."""
        return islice(self._until_another(number), most)

    def _until_another(self, number: int) -> Iterator[tuple]:
        while True:
            row = next(self._rows, None) if self._next is None else self._next
            if row is None or row[0] != number:
                self._next = row
                return
            self._next = None
            yield row


def _write(
    job: Job, file: RecordFile, offsets: list[int], rows: Iterator[tuple], add: Callable[[int], Any]
) -> None:
    """Write one file from its `rows`, and note it with its rows of the index."""
    written, read, psnr, described = 0, set(), [], []
    with _record_writer(job.work / file.path.name) as put:
        for _, offset, size, raw, images, errors, in_index in rows:
            data = _rewritten(raw, dict(zip(job.changed, images)), job.dropped)
            put(data)
            described.append((file.number, written, *in_index))
            written += len(data) + FRAMING_BYTES
            read.add(int(offset))
            psnr += [round(float(error), 2) for error in errors]
            add(int(size) + FRAMING_BYTES)
    left_out = [number for number, offset in enumerate(offsets) if offset not in read]
    left_out += range(len(offsets), file.episodes)
    note = {"episodes": len(read), "bytes": written, "left_out": left_out, "psnr": psnr}
    job.finish(file, note, described)


def _preparer(job: Job, names: Sequence[str]) -> Callable[[Any], tuple]:
    """Return a graph function: a serialized episode -> the same, the new images of each of
    `job.changed`, string [T], the PSNR of the first of each in dB, and the row of `describer`,
    empty without `job.fields`. names: the step features read.
    """
    tf = import_tensorflow()
    describe = describer(job.source, job.fields) if job.fields else lambda raw: ()
    parse = episode_parser(job.source.features, names)

    def encode(images: Any, stored: tuple[int | None, ...]) -> Any:
        return tf.map_fn(
            lambda data: _encode(job, decode_one(data, stored, job.size)),
            images,
            fn_output_signature=tf.TensorSpec([], tf.string),
            parallel_iterations=1,  # episodes are made in parallel
        )

    def compare(stored: tuple[int | None, ...], before: Any, after: Any) -> Any:
        frame = decode_one(before, stored, job.size)
        again = tf.io.decode_jpeg(after, channels=3)
        return tf.minimum(tf.image.psnr(frame, again, 255), _HIGHEST_PSNR)

    def prepare(raw: Any) -> tuple:
        episode = parse(raw)
        lengths = tf.stack([tf.shape(episode[name])[0] for name in names])
        tf.debugging.assert_equal(lengths, lengths[0], "numbers of steps differ")
        images, errors = [], [tf.zeros([0])]
        for name in job.changed:
            stored = job.stored[name]
            images.append(encode(episode[name], stored))
            errors.append(
                tf.map_fn(
                    lambda pair, stored=stored: compare(stored, *pair),
                    (episode[name][:1], images[-1][:1]),
                    fn_output_signature=tf.float32,
                )
            )
        return raw, tuple(images), tf.concat(errors, 0), describe(raw)

    return prepare


def _encode(job: Job, frame: Any) -> Any:
    """TensorFlow: uint8 [height, width, 3] -> JPEG."""
    return import_tensorflow().io.encode_jpeg(frame, format="rgb", quality=job.quality)


def _rewritten(raw: bytes, images: Mapping[str, Sequence[bytes]], dropped: Sequence[str]) -> bytes:
    """Return the record with other `images` of some step features, and without those `dropped`."""
    example = import_tensorflow().train.Example.FromString(raw)
    features = example.features.feature
    for name, frames in images.items():
        features[f"steps/{name}"].bytes_list.value[:] = frames
    for name in dropped:
        if f"steps/{name}" in features:
            del features[f"steps/{name}"]
    return example.SerializeToString(deterministic=True)  # a file written again has the same bytes


@contextmanager
def _record_writer(target: Any) -> Iterator[Callable[[bytes], Any]]:
    """For the block: a function that takes records for the TFRecord file `target`, which appears at
    its end. After an exception it is as before. Raises WriteError.
    """
    tf = import_tensorflow()
    with must_be_written(target), atomic_open(target, "wb") as file:
        try:
            with tf.io.TFRecordWriter(str(file.name)) as writer:
                yield writer.write
        except tf.errors.OpError as error:
            raise OSError(error.message) from error


def _features_read(job: Job) -> list[str]:
    """Return the cameras, and the step features of a fixed shape that are kept."""
    fixed = [name for name, feature in job.source.steps.items() if None not in feature.shape]
    return sorted({*fixed, *job.cameras} - {*job.dropped})
