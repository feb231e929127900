"""Reads records by byte offset, and parses the needed features of an episode. Decodes no image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp import files
from robomimic_ddp.data.rlds.schema.features import episode_features, flat_features, is_picture
from robomimic_ddp.data.rlds.schema.fields import OF_EPISODE, Fields
from robomimic_ddp.data.rlds.tf_import import (
    import_tensorflow,
    import_tensorflow_datasets,
    traced_as_written,
)
from robomimic_ddp.errors import DataError

FRAMING_BYTES = 16
"""TFRecord adds to each record its length (8), a checksum of that (4) and of the data (4)."""
READ_BUFFER_BYTES = 262_144


def raw_records(file: Any, offset: Any) -> Any:
    """tf.data of the serialized episodes of `file` (string) from byte `offset` (int64) on."""
    tf = import_tensorflow()
    # tf.data.TFRecordDataset has no offset.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(file, [1]),
        compression_type="",
        buffer_size=READ_BUFFER_BYTES,
        byte_offsets=tf.reshape(offset, [1]),
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def step_features_read(fields: Fields, with_images: bool) -> list[str]:
    """Names of the step features that a run reads, with or without images."""
    parts = (*fields.low_dim.values(), *fields.actions.values())
    names = [part.source for part in parts]
    if fields.language:
        names.append(fields.language)
    return sorted({*names, *(fields.images.values() if with_images else ())})


def episode_parser(features: Any, names: Sequence[str]) -> Callable[[Any], dict[str, Any]]:
    """A graph function: serialized episode -> {step feature: [T, ...]}. Names with the prefix
    `OF_EPISODE` are scalar features of the episode. Images are strings [T], scalars [T].
    """
    tfds = import_tensorflow_datasets()
    steps = flat_features(features["steps"].feature)
    of_episode = [name[len(OF_EPISODE) :] for name in names if name.startswith(OF_EPISODE)]
    of_steps = [name for name in names if not name.startswith(OF_EPISODE)]
    whole = episode_features(features)
    wanted: dict[str, Any] = _nested({name: whole[name] for name in of_episode})
    wanted["steps"] = tfds.features.Dataset(_nested({name: steps[name] for name in of_steps}))
    subset = tfds.features.FeaturesDict(wanted)

    def parse(serialized: Any) -> dict[str, Any]:
        decoders = {"steps": tfds.decode.SkipDecoding()}
        episode = subset.deserialize_example(serialized, decoders=decoders)
        flat = flat_features(episode.pop("steps"))
        flat.update((OF_EPISODE + name, value) for name, value in flat_features(episode).items())
        return flat

    return parse


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, feature in flat.items():
        *folders, leaf = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = feature
    return tree


def _first_fault(
    files: Iterable[Path], features: Any = None, names: Sequence[str] = ()
) -> str | None:
    """Return a text on the first record with a wrong checksum, or with a `fault_of` its step
    features `names`; else None.
    """
    tf = import_tensorflow()
    for file in files:
        number = -1
        try:
            for number, record in enumerate(tf.data.TFRecordDataset(str(file))):
                fault = fault_of(record, features, names) if names else None
                if fault is not None:
                    return f"{file}: episode {number}{fault}"
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0]
            return f"{file}: record {number + 1} is damaged or cut off ({reason})"
    return None


@traced_as_written
def read_records(
    files: Sequence[Path],
    places: Sequence[tuple[int, int]],
    make: Callable[[Any], tuple],
    threads: int,
    skip: bool,
) -> Any:
    """Return tf.data of a row for each of `places`, in order: number of the file, byte offset,
    bytes of the record, and what the graph function `make` returns for its serialized episode.
    `threads` records are read and made at once; with `skip` those that fail are left out.
    """
    tf = import_tensorflow()
    names = tf.constant([str(file) for file in files], tf.string)

    def row(number: Any, offset: Any) -> tuple:
        raw = raw_records(names[number], offset).take(1).get_single_element()
        return number, offset, tf.strings.length(raw), *make(raw)

    numbers, offsets = (np.array(column, np.int64) for column in zip(*places or [(0, 0)]))
    rows = tf.data.Dataset.from_tensor_slices((numbers, offsets)).take(len(places))
    rows = rows.map(row, num_parallel_calls=threads, deterministic=True)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    rows = rows.prefetch(2).with_options(options)
    return rows.ignore_errors() if skip else rows


def offsets_of(file: Path, episodes: int, skip_corrupt: bool) -> list[int]:
    """Return `record_offsets` of a file that has `episodes` by its metadata. Raises DataError for a
    file that cannot be read or has another number, unless `skip_corrupt`.
    """
    try:
        offsets = record_offsets(file)
    except DataError:
        if skip_corrupt:
            return []
        raise
    if not skip_corrupt and len(offsets) != episodes:
        fault = _first_fault([file]) or (
            f"{file} has {len(offsets)} episodes, its metadata promises {episodes}: cut off, or "
            "still being written"
        )
        raise DataError(f"{fault}. Copy that file again.")
    return offsets


def record_offsets(file: Path) -> list[int]:
    """Return the byte offsets of all records of `file`. Raises DataError."""
    return [offset for offset, _ in stored_checksums(file)]


def stored_checksums(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the byte offset of each record of `file`, by the lengths in it, and the 4 bytes of the
    checksum that is stored of its data. Reads 12 bytes of a record. Raises DataError.
    """
    try:
        offset, size = 0, file.stat().st_size
        with files.opened(file) as data:
            length = int.from_bytes(data.read(8), "little")
            while length and offset + FRAMING_BYTES <= size:  # no length: space for a copy to come
                end = offset + length + FRAMING_BYTES
                data.seek(min(end, size) - 4)
                framing = data.read(12)
                yield offset, framing[:4]
                offset, length = end, int.from_bytes(framing[4:], "little")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}. Copy that file again.") from error


def fault_of(serialized: Any, features: Any, names: Sequence[str]) -> str | None:
    """Return why the step features `names` of an episode cannot be used, or None."""
    tf = import_tensorflow()
    steps = flat_features(features["steps"].feature)
    try:
        episode = episode_parser(features, names)(serialized)
    except (tf.errors.OpError, ValueError) as error:
        return f": its features are not those of the metadata ({str(error).splitlines()[0]})"
    lengths = {name: int(tf.shape(episode[name])[0]) for name in names}
    if len(set(lengths.values())) > 1:
        return f": its features are not those of the metadata (numbers of steps: {lengths})"
    for place in filter(lambda name: is_picture(steps[name]), names):
        for step, data in enumerate(episode[place]):
            try:
                frame = tf.io.decode_image(data, channels=3, expand_animations=False)
                tf.ensure_shape(frame, steps[place].shape)
            except (tf.errors.OpError, ValueError) as error:
                reason = str(error).splitlines()[0]
                return f", step {step}, `{place}` cannot be decoded ({reason})"
    return None


def rows_of(
    features: Any,
    files: Sequence[Path],
    places: Sequence[tuple[int, int]],
    make: Callable[[Any], tuple],
    threads: int,
    doing: str,
    names: Sequence[str],
    skip: bool = False,
    remedy: str = "ddp.skip_corrupt=true",
) -> Iterator[tuple]:
    """Yield the rows of `read_records`, as numpy. Raises DataError, which names the damaged episode
    and says that reading failed while `doing` something with the step features `names` of
    `features`. remedy: what leaves such episodes out.
    """
    reached = 0
    try:
        for row in read_records(files, places, make, threads, skip).as_numpy_iterator():
            reached = row[0]
            yield row
    except import_tensorflow().errors.OpError as error:
        left = dict.fromkeys(number for number, _ in places if number >= reached)
        fault = _first_fault([files[number] for number in left], features, names)
        fault = fault or f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise DataError(
            f"reading failed while {doing}.\n{fault}\n"
            "Copy or prepare that file again; training on what is left would silently lose "
            f"episodes. To leave them out and count them: {remedy}."
        ) from error
