"""tf.train.Example without TensorFlow: what its bytes mean, and what is read of a feature."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import tensorflow_datasets as tfds

from robomimic_ddp.data.rlds.index import example
from robomimic_ddp.data.rlds.index.example import Column
from robomimic_ddp.data.rlds.pipeline.images import RecordError
from robomimic_ddp.data.rlds.schema.spec import OF_EPISODE


def field(number: int, data: bytes) -> bytes:
    """A field of a message, as protocol buffers write it: short data."""
    return bytes([number << 3 | 2, len(data)]) + data


LISTS = {
    "floats": field(2, field(1, struct.pack("<2f", 0.5, -2.0))),
    "ints": field(3, field(1, bytes([5, 7]))),
    "none": b"",
    "texts": field(1, field(1, b"a\0") + field(1, b"b")),
}
BYTES = field(
    1,
    b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in LISTS.items()),
)


@pytest.fixture
def features():
    """The features of an Example; its class is made again."""
    message = example.example_class.__wrapped__().FromString(BYTES)
    assert message.SerializeToString(deterministic=True) == BYTES, "as TensorFlow writes it"
    return message.features.feature


def test_an_example_is_what_tensorflow_writes(features):
    assert sorted(features) == sorted(LISTS)
    kinds = {name: features[name].WhichOneof("kind") for name in LISTS}
    expected = {"floats": "float_list", "ints": "int64_list", "none": None, "texts": "bytes_list"}
    assert kinds == expected
    assert [*features["floats"].float_list.value] == [0.5, -2.0]
    assert [*features["ints"].int64_list.value] == [5, 7]
    assert [*features["texts"].bytes_list.value] == [b"a\0", b"b"]
    unpacked = field(3, bytes([1 << 3, 5, 1 << 3, 7]))
    (again,) = example.parsed_example(
        field(1, field(1, field(1, b"x") + field(2, unpacked)))
    ).features.feature.values()
    assert [*again.int64_list.value] == [5, 7]


@pytest.mark.parametrize(
    ("key", "kind", "dtype", "shape", "of_steps", "expected"),
    [
        ("floats", "float_list", np.float64, (), True, [0.5, -2.0]),
        ("floats", "float_list", np.float32, (2,), True, [[0.5, -2.0]]),
        ("floats", "float_list", np.float32, (2, 1), False, [[0.5], [-2.0]]),
        ("ints", "int64_list", np.uint8, (1,), True, [[5], [7]]),
        ("ints", "int64_list", np.bool_, (), True, [True, True]),
        ("none", "int64_list", np.int64, (), True, []),
        ("missing", "float_list", np.float32, (3,), True, np.zeros((0, 3))),
        ("texts", "bytes_list", None, (2,), True, [[b"a\0", b"b"]]),
    ],
)
def test_numbers_have_the_type_and_shape_of_the_metadata(
    key, kind, dtype, shape, of_steps, expected, features
):
    values = Column(key, kind, dtype and np.dtype(dtype), shape, of_steps).read(features)
    assert values.dtype == (dtype or object)
    assert values.tolist() == np.asarray(expected, object).tolist()
    assert values.shape == np.shape(expected)


def test_columns_are_those_of_the_metadata():
    of = tfds.features
    step = {
        "pose": of.Tensor(shape=(2, 3), dtype=np.float64),
        "count": of.Scalar(dtype=np.int32),
        "is_last": of.Scalar(dtype=np.bool_),
        "names": of.Tensor(shape=(2,), dtype=np.str_),
        "mask": of.Tensor(shape=(4, 4), dtype=np.uint8, encoding="zlib"),
        "open": of.Tensor(shape=(None,), dtype=np.float32),
    }
    features = of.FeaturesDict({"steps": of.Dataset(step), "id": of.Scalar(dtype=np.int64)})
    parser = example.EpisodeParser(features, [*step, f"{OF_EPISODE}id"])
    floats, ints, texts = "float_list", "int64_list", "bytes_list"
    assert [*parser.columns.values()] == [
        Column("steps/pose", floats, np.dtype(np.float64), (2, 3), True),
        Column("steps/count", ints, np.dtype(np.int32), (), True),
        Column("steps/is_last", ints, np.dtype(np.bool_), (), True),
        Column("steps/names", texts, None, (2,), True),
        Column("steps/mask", texts, None, (), True),
        Column("steps/open", floats, np.dtype(np.float32), None, True),
        Column("id", ints, np.dtype(np.int64), (), False),
    ]


def test_of_values_that_differ_by_step_the_number_of_steps_is_read(features):
    """As the lengths of their rows."""
    stored = {"x/ragged_row_lengths_0": features["ints"]}
    lengths = Column("x", "float_list", np.dtype("f4"), None, True).read(stored)
    assert lengths.tolist() == [5, 7]


def test_texts_of_steps_are_a_list_and_one_of_the_episode_is_it(features):
    assert Column("texts", "bytes_list", None, (), True).read(features) == [b"a\0", b"b"]
    with pytest.raises(RecordError, match="texts: 2 values for the shape"):
        Column("texts", "bytes_list", None, (), False).read(features)
    with pytest.raises(RecordError, match="ints: expected a float_list, found a int64_list"):
        Column("ints", "float_list", np.dtype("f4"), (), True).read(features)
    with pytest.raises(RecordError, match="floats: 2 values for the shape .3,"):
        Column("floats", "float_list", np.dtype("f4"), (3,), True).read(features)
