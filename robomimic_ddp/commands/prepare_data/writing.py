"""Reads episodes, encodes their images again at the prepared size, and writes record files.

An episode is a tf.train.Example: only its images are replaced, all else stays as stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.commands.prepare_data.job import Job, RecordFile
from robomimic_ddp.data.rlds.index.build import describer
from robomimic_ddp.data.rlds.index.records import (
    FRAMING_BYTES,
    damaged_data,
    episode_parser,
    raw_records,
    record_offsets,
)
from robomimic_ddp.data.rlds.index.source import SPLIT
from robomimic_ddp.data.rlds.pipeline.images import decode_one
from robomimic_ddp.data.rlds.schema.features import step_features
from robomimic_ddp.data.rlds.tf_import import import_tensorflow, traced_as_written
from robomimic_ddp.distributed.atomic_files import (
    flush_folder,
    must_be_written,
    remove_left_over,
    temporary_beside,
)
from robomimic_ddp.errors import DataError

_END = -1
"""The offset after the last record of a file."""
_SAMPLED_FILES, _SAMPLED_RECORDS, _SAMPLED_FRAMES = 16, 4, 8
"""For the sample: most files; records tried in each until one has steps; images of a camera."""
_HIGHEST_PSNR = 99.0
"""In dB, for an image whose pixels are equal."""


def write_all(job: Job, files: Sequence[RecordFile], add: Callable[[int], Any]) -> int:
    """Writes the prepared `files` and notes each that is finished; returns the number of images
    encoded. add: takes the numbers of source bytes that were read. Raises DataError for a damaged
    file, WriteError.
    """
    encoded = 0
    rows = _episodes(job, files).as_numpy_iterator() if files else iter(())
    for file in files:
        note, described = _write(job, file, rows, add)
        encoded += note.pop("images")
        job.finish(file, note, described)
    return encoded


def _write(
    job: Job, file: RecordFile, rows: Iterator[tuple], add: Callable[[int], Any]
) -> tuple[dict[str, Any], list[tuple]]:
    """Writes one file from the next of `rows`; returns its note, and its rows of the index, if the
    job makes one.
    """
    tf = import_tensorflow()
    written, number, encoded, left_out, described = 0, 0, 0, [], []
    with _record_writer(job.work / file.path.name) as put:
        while True:
            try:
                offset, good, raw, *images, in_index = next(rows)
            except tf.errors.OpError as error:
                raise _damaged(job, file, error) from error
            if offset == _END:
                break
            if good:
                data = _rewritten(raw, dict(zip(job.changed, images)), job.dropped)
                put(data)
                described.append((file.number, written, *in_index))
                written += len(data) + FRAMING_BYTES
                encoded += sum(map(len, images))
            else:
                left_out.append(number)
            number += 1
            add(len(raw) + FRAMING_BYTES)
        if number != file.episodes and not job.skip_corrupt:
            record_offsets(file.path)  # raises for a file that cannot be read
            raise DataError(
                f"{file.path} has {number} episodes, its metadata promises {file.episodes}: cut "
                "off, or still being written. Copy it again."
            )
    kept = number - len(left_out)
    left_out += range(number, file.episodes)
    note = {"episodes": kept, "bytes": written, "left_out": left_out, "images": encoded}
    return note, described


@traced_as_written
def _episodes(job: Job, files: Sequence[RecordFile]) -> Any:
    """tf.data of the episodes of `files`, in order: byte offset, whether it can be read, the
    record, the new images of each of `job.changed`, string [T], and the row of `describer`, empty
    without `job.fields`. After the last one of a file the offset is _END.
    """
    tf = import_tensorflow()
    describe = describer(job.source, job.fields) if job.fields else lambda raw: ()
    of_nothing = tf.function(describe).get_concrete_function(tf.TensorSpec([], tf.string))
    of_nothing = tf.nest.map_structure(
        lambda one: tf.zeros([size or 0 for size in one.shape], one.dtype),
        of_nothing.structured_outputs,
    )
    names = tf.constant([str(file.path) for file in files])
    names_read = _features_read(job)
    parse = episode_parser(job.source.features, names_read)

    def places(file: Any) -> Any:
        def offsets(number: np.int64) -> np.ndarray:
            try:
                return np.array([*record_offsets(files[number].path), _END], np.int64)
            except DataError:  # the writer counts
                return np.array([_END], np.int64)

        found = tf.ensure_shape(tf.numpy_function(offsets, [file], tf.int64), [None])
        return tf.data.Dataset.from_tensor_slices(found).map(lambda offset: (file, offset))

    def encoded(images: Any, stored: tuple[int | None, ...]) -> Any:
        return tf.map_fn(
            lambda data: _encoded(job, decode_one(data, stored, job.size)),
            images,
            fn_output_signature=tf.TensorSpec([], tf.string),
            parallel_iterations=1,  # episodes are made in parallel
        )

    def made(file: Any, offset: Any) -> tuple:
        raw = raw_records(names[file], offset).take(1).get_single_element()
        episode = parse(raw)
        lengths = tf.stack([tf.shape(episode[name])[0] for name in names_read])
        tf.debugging.assert_equal(lengths, lengths[0], "numbers of steps differ")
        images = (encoded(episode[name], job.stored[name]) for name in job.changed)
        return (offset, tf.constant(True), raw, *images, describe(raw))

    def row(file: Any, offset: Any) -> tuple:
        none = [tf.zeros([0], tf.string)] * len(job.changed)
        nothing = (offset, tf.constant(False), tf.constant(""), *none, of_nothing)

        def read() -> tuple:
            if job.skip_corrupt:
                return _attempt(lambda: made(file, offset), nothing)
            return made(file, offset)

        return tf.cond(tf.equal(offset, _END), lambda: nothing, read)

    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = job.threads
    options.threading.max_intra_op_parallelism = 1
    rows = tf.data.Dataset.range(len(files)).flat_map(places)
    rows = rows.map(row, num_parallel_calls=job.threads, deterministic=True)
    return rows.prefetch(1).with_options(options)


def _attempt(make: Callable[[], Any], instead: Any) -> Any:
    """TensorFlow: return `make()`, or `instead` if one of its operations fails."""
    once = import_tensorflow().data.Dataset.from_tensors(0)
    tried = once.map(lambda _: make()).ignore_errors().concatenate(once.map(lambda _: instead))
    return tried.take(1).get_single_element()


def _encoded(job: Job, frame: Any) -> Any:
    """TensorFlow: uint8 [height, width, 3] -> JPEG."""
    return import_tensorflow().io.encode_jpeg(frame, format="rgb", quality=job.quality)


def _rewritten(raw: bytes, images: Mapping[str, Sequence[bytes]], dropped: Sequence[str]) -> bytes:
    """The record with other `images` of some step features, and without those `dropped`."""
    example = import_tensorflow().train.Example.FromString(raw)
    features = example.features.feature
    for name, frames in images.items():
        features[f"steps/{name}"].bytes_list.value[:] = frames
    for name in dropped:
        if f"steps/{name}" in features:
            del features[f"steps/{name}"]
    return example.SerializeToString(deterministic=True)  # a file written again has the same bytes


@contextmanager
def _record_writer(target: Path) -> Iterator[Callable[[bytes], Any]]:
    """For the block: a function that takes records for the TFRecord file `target`, which appears at
    its end. After an exception it is as before. Raises WriteError.
    """
    tf = import_tensorflow()
    remove_left_over(target)
    temporary = temporary_beside(target)

    def checked(call: Callable[..., Any], *arguments: Any) -> Any:
        with must_be_written(target):
            try:
                return call(*arguments)
            except tf.errors.OpError as error:
                raise OSError(error.message) from error

    def publish() -> None:
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
        flush_folder(target.parent)

    out = checked(tf.io.TFRecordWriter, str(temporary))
    try:
        yield lambda data: checked(out.write, data)
        checked(out.close)
        checked(publish)
    except BaseException:
        with suppress(tf.errors.OpError):
            out.close()
        temporary.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class Sample:
    """Of some episodes: bytes of the prepared set over those of the source, and `psnr` of the notes
    (see `index.prepared`).
    """

    ratio: float
    psnr: dict[str, Any] | None


def sample(job: Job) -> Sample:
    """Encodes some images, spread over the dataset; the same for all tasks. Raises DataError if
    none can be read.
    """
    files = [file for file in job.files if file.split == SPLIT and file.size]
    chosen = [files[n] for n in range(0, len(files), -(-len(files) // _SAMPLED_FILES) or 1)]
    read = written = 0.0
    psnr: list[float] = []
    for file in chosen:
        for raw, cameras, dropped in _first_records(job, file):
            read, written = read + len(raw), written + len(raw) - dropped
            for images, tried in cameras:
                psnr += [one for one, *_ in tried]
                _, before, after = np.sum(tried, 0) if tried else (0, 1, 1)
                written -= images * (1 - after / before)
            if any(tried for _, tried in cameras) or not job.changed:
                break
    if not read or (job.changed and not psnr):
        raise DataError(
            f"none of the first episodes of {len(chosen)} files of {job.source.folder} can be read "
            "and has images. Copy or prepare the dataset again."
        )
    found = {"mean": float(np.mean(psnr)), "least": min(psnr), "frames": len(psnr)} if psnr else {}
    return Sample(written / read, found or None)


def _first_records(
    job: Job, file: RecordFile
) -> Iterator[tuple[bytes, list[tuple[int, list[tuple]]], int]]:
    """The first records of a file; for each of `job.changed` its bytes, and some of its images as
    `_compared`; and the bytes of dropped images. Leaves out damaged records: the writer names them.
    """
    tf = import_tensorflow()
    parse = episode_parser(job.source.features, sorted({*job.cameras, *job.dropped}))

    def size(images: Any) -> int:
        return sum(map(len, images.numpy()))

    offsets: list[int] = []
    with suppress(DataError):
        offsets = record_offsets(file.path)
    for offset in offsets[:_SAMPLED_RECORDS]:
        with suppress(tf.errors.OpError):
            raw = raw_records(str(file.path), np.int64(offset)).take(1).get_single_element()
            episode = parse(raw)
            cameras = []
            for name in job.changed:
                images = episode[name].numpy()
                step = -(-len(images) // _SAMPLED_FRAMES) or 1
                tried = [_compared(job, name, data) for data in images[::step]]
                cameras.append((size(episode[name]), tried))
            yield raw.numpy(), cameras, sum(size(episode[name]) for name in job.dropped)


def _compared(job: Job, camera: str, data: bytes) -> tuple[float, int, int]:
    """PSNR in dB of an image after encoding, against the delivered pixels of the source; its bytes
    before and after.
    """
    tf = import_tensorflow()
    frame = decode_one(tf.constant(data), job.stored[camera], job.size)
    encoded = _encoded(job, frame)
    back = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    error = np.mean((frame.numpy().astype(np.float64) - back.numpy()) ** 2)
    psnr = 10 * np.log10(255**2 / error) if error else _HIGHEST_PSNR
    return float(min(psnr, _HIGHEST_PSNR)), len(data), len(encoded.numpy())


def _features_read(job: Job) -> list[str]:
    """Return the cameras, and the step features of a fixed shape that are kept."""
    steps = step_features(job.source.features, str(job.source.folder))
    fixed = [name for name, feature in steps.items() if None not in feature.shape]
    return sorted({*fixed, *job.cameras} - {*job.dropped})


def _damaged(job: Job, file: RecordFile, error: Exception) -> DataError:
    doing = f"preparing {job.source.folder}; finished files are kept"
    more = (doing, job.source.features, _features_read(job), "--skip-corrupt")
    return damaged_data(error, [file.path], *more)
