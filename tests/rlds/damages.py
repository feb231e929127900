"""The table of bad RLDS data: how each is made, what is said of it, and what is lost by it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OVERHEAD = 16
"""Bytes that TFRecord adds to a record."""


def files_of(folder: Path) -> list[Path]:
    """The record files, in order; each has two episodes."""
    return sorted(folder.glob("*tfrecord*"))


def flip(number: int) -> Callable[[Path], None]:
    """A flipped bit in the first record of file `number`."""

    def damage(folder: Path) -> None:
        file = files_of(folder)[number]
        data = bytearray(file.read_bytes())
        data[int.from_bytes(data[:8], "little") // 2] ^= 1
        file.write_bytes(data)

    return damage


def cut(folder: Path) -> None:
    """The last record of file 3 without its end."""
    file = files_of(folder)[3]
    file.write_bytes(file.read_bytes()[:-60])


def fewer(folder: Path) -> None:
    """File 3 without its last record, as while it is being copied."""
    file = files_of(folder)[3]
    data = file.read_bytes()
    file.write_bytes(data[: OVERHEAD + int.from_bytes(data[:8], "little")])


def remove(folder: Path) -> None:
    """File 2 is not there."""
    files_of(folder)[2].unlink()


def rewrite(number: int, record: int, change: Callable[[Any], None]) -> Callable[[Path], None]:
    """`change(features)` of one record of file `number`, whose checksums are then right."""

    def damage(folder: Path) -> None:
        import tensorflow as tf

        file = files_of(folder)[number]
        records = [bytes(r) for r in tf.data.TFRecordDataset(str(file)).as_numpy_iterator()]
        example = tf.train.Example.FromString(records[record])
        change(example.features.feature)
        records[record] = example.SerializeToString()
        with tf.io.TFRecordWriter(str(file)) as writer:
            for data in records:
                writer.write(data)

    return damage


def other_type(features: Any) -> None:
    """States as whole numbers, where the metadata promises floating ones."""
    place = features["steps/observation/cartesian_position"]
    count = len(place.float_list.value)
    place.ClearField("float_list")
    place.int64_list.value.extend([1] * count)


def more_states(features: Any) -> None:
    """A state has a thousand steps more than the episode."""
    features["steps/observation/cartesian_position"].float_list.value.extend([0.0] * 6000)


def no_picture(features: Any) -> None:
    """The second frame of a camera is no picture."""
    features["steps/observation/exterior_image_1_left"].bytes_list.value[1] = b"no picture"


def no_camera(features: Any) -> None:
    """The record lacks a camera that the metadata has."""
    del features["steps/observation/exterior_image_1_left"]


def nan(features: Any) -> None:
    """A state of the third step is no number."""
    features["steps/observation/cartesian_position"].float_list.value[13] = np.nan


def no_steps(features: Any) -> None:
    """An episode of no step."""
    for name, feature in features.items():
        if name.startswith("steps/"):
            getattr(feature, feature.WhichOneof("kind")).ClearField("value")


@dataclass(frozen=True)
class Damage:
    """`make(folder)` damages a copy of the made-up set.

    words: of the error; none where it trains. lost: episodes that ddp.skip_corrupt leaves out of
    the index, and what is `said` of them. unread: episodes that the index cannot find to be
    damaged, so that they are an error with ddp.skip_corrupt, too. late: made after the index.
    """

    name: str
    make: Callable[[Path], None]
    words: tuple[str, ...] = ()
    lost: Collection[int] = ()
    said: tuple[str, ...] = ()
    unread: Collection[int] = ()
    late: bool = False


FILE = "/made_up/1.0.0/made_up-train.tfrecord"
"""Of the set's files the path's end, without their numbers."""
DAMAGES = (
    Damage(
        "corrupt record",
        flip(1),
        (f"{FILE}-00001: the episode at byte 0 cannot be used (its checksum",),
        {2},
        ("1 of 14 episodes of made_up/1.0.0 are left out", "-00001"),
    ),
    Damage(
        "cut-off file",
        cut,
        (f"{FILE}-00003: the episode at byte ", "it is cut off"),
        {7},
        ("-00003",),
    ),
    Damage("file still being copied", fewer, (f"{FILE}-00003 has 1 episodes",), {7}, ("-00003",)),
    Damage("missing file", remove, ("1 of the 7 record files", "-00002"), {4, 5}, ("2 of",)),
    Damage(
        "wrong feature type",
        rewrite(3, 1, other_type),
        ("-00003: the episode at byte ", "expected a float_list"),
        {7},
        ("1 of", "-00003"),
    ),
    Damage(
        "more states than steps",
        rewrite(3, 1, more_states),
        ("-00003: the episode at byte ", "numbers of steps"),
        {7},
        ("1 of", "-00003"),
    ),
    Damage(
        "nan state",
        rewrite(2, 1, nan),
        ("NaN or infinite state", "-00002"),
        {5},
        ("1 of 14 episodes of made_up/1.0.0 are left out", "-00002"),
    ),
    Damage("episode of no step", rewrite(2, 1, no_steps), lost={5}),
    Damage(
        "a frame that is no picture",
        rewrite(3, 0, no_picture),
        ("rank 0", f"{FILE}-00003: episode 0 at byte ", ", step 1, ", "exterior_image_1_left"),
        unread={6},
    ),
    Damage(
        "a record without a camera",
        rewrite(4, 0, no_camera),
        ("rank 0", "-00004: episode 0", "numbers of steps"),
        unread={8},
    ),
    Damage(
        "a record that is damaged later",
        flip(3),
        ("rank 0", f"{FILE}-00003: episode 0", "its record cannot be used (its checksum"),
        unread={6},
        late=True,
    ),
    Damage(
        "a file that is removed later",
        remove,
        ("rank 0", "-00002: episode", "its record cannot be used", "No such file"),
        unread={4, 5},
        late=True,
    ),
)
"""What can be wrong with a dataset that opens without an error."""
