"""tf.train.Example: messages in a package of ours, so that TensorFlow's may be loaded, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.pipeline.images import RecordError
from robomimic_ddp.data.rlds.schema.features import (
    episode_features,
    flat_features,
    is_encoded,
    is_number,
)
from robomimic_ddp.data.rlds.schema.spec import OF_EPISODE

_PACKAGE = "robomimic_ddp.rlds"
_LISTS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
_RAGGED = "/ragged_row_lengths_0"


@lru_cache(maxsize=1)
def example_class() -> Any:
    """Return the message class of an Example, wire-compatible with
    tensorflow/core/example/*.proto.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(package=_PACKAGE, syntax="proto3")
    file.name = "robomimic_ddp/rlds/example.proto"

    def field(
        message: Any, name: str, number: int, kind: int, of: str = "", **options: Any
    ) -> None:
        if of:
            options["type_name"] = f".{_PACKAGE}.{of}"
        message.field.add(name=name, number=number, type=kind, **options)

    values = {
        "BytesList": kinds.TYPE_BYTES,
        "FloatList": kinds.TYPE_FLOAT,
        "Int64List": kinds.TYPE_INT64,
    }
    for name, kind in values.items():
        field(file.message_type.add(name=name), "value", 1, kind, label=kinds.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, of) in enumerate(_LISTS.items(), 1):
        field(feature, name, number, kinds.TYPE_MESSAGE, of, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, kinds.TYPE_STRING)
    field(entry, "value", 2, kinds.TYPE_MESSAGE, "Feature")
    of = "Features.FeatureEntry"
    field(features, "feature", 1, kinds.TYPE_MESSAGE, of, label=kinds.LABEL_REPEATED)
    field(file.message_type.add(name="Example"), "features", 1, kinds.TYPE_MESSAGE, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def parsed_example(serialized: bytes) -> Any:
    """Return the Example in a record. Raises RecordError."""
    from google.protobuf.message import DecodeError

    try:
        return example_class().FromString(serialized)
    except DecodeError as error:
        raise RecordError(f"it is not a tf.train.Example: {error}") from error


@dataclass(frozen=True)
class Column:
    """A feature as it is stored. key: in the Example; kind: its list; dtype: of numbers, None for
    bytes; shape: of one step, or of the episode's value; None if it differs by step.
    """

    key: str
    kind: str
    dtype: np.dtype | None
    shape: tuple[int, ...] | None
    of_steps: bool

    def read(self, features: Mapping[str, Any]) -> Any:
        """Return the values: of numbers an array, of texts and images bytes; of steps one entry for
        each. Raises RecordError for values of another type or number.
        """
        if self.shape is None:  # only the number of steps is of interest
            ragged = self.key + _RAGGED
            if ragged in features:
                return np.array(features[ragged].int64_list.value, np.int64)
        stored = features[self.key].WhichOneof("kind") if self.key in features else None
        if stored not in (None, self.kind):
            raise RecordError(f"{self.key}: expected a {self.kind}, found a {stored}")
        values = getattr(features[self.key], self.kind).value if stored else ()
        size = int(np.prod(self.shape or ()))
        if not self.of_steps and len(values) != size or size and len(values) % size:
            raise RecordError(f"{self.key}: {len(values)} values for the shape {self.shape}")
        if self.dtype is None and not self.shape:
            return list(values) if self.of_steps else values[0]
        narrow = {"float_list": np.float32, "int64_list": np.int64}.get(self.kind, object)
        numbers = np.array(values, narrow).astype(self.dtype or object)
        if not self.of_steps:
            return numbers.reshape(self.shape)
        return numbers.reshape(len(values) // max(size, 1), *(self.shape or ()))


class EpisodeParser:
    """serialized episode -> {feature: values}, of the step features `names` (see `Column.read`).
    Names with the prefix `OF_EPISODE` are scalar features of the episode. Can be pickled.
    """

    def __init__(self, features: Any, names: Sequence[str]) -> None:
        steps = flat_features(features["steps"].feature)
        whole = episode_features(features)
        self.columns = {}
        for name in names:
            of_steps = not name.startswith(OF_EPISODE)
            plain = name if of_steps else name[len(OF_EPISODE) :]
            key = f"steps/{plain}" if of_steps else plain
            self.columns[name] = _column(key, (steps if of_steps else whole)[plain], of_steps)

    def __call__(self, serialized: bytes) -> dict[str, Any]:
        """Parse an episode. Raises RecordError for what differs from the metadata, and for features
        of different numbers of steps.
        """
        features = parsed_example(serialized).features.feature
        values = {name: column.read(features) for name, column in self.columns.items()}
        of_steps = [name for name, column in self.columns.items() if column.of_steps]
        lengths = {name: len(values[name]) for name in of_steps}
        if len(set(lengths.values())) > 1:
            raise RecordError(f"numbers of steps: {lengths}")
        return values


def _column(key: str, feature: Any, of_steps: bool) -> Column:
    if not is_number(feature):
        shape = () if is_encoded(feature) else tuple(feature.shape)
        return Column(key, "bytes_list", None, _known(shape), of_steps)
    dtype = np.dtype(feature.np_dtype)
    kind = "float_list" if dtype.kind == "f" else "int64_list"
    return Column(key, kind, dtype, _known(tuple(feature.shape)), of_steps)


def _known(shape: tuple[int | None, ...]) -> tuple[int, ...] | None:
    return None if None in shape else shape  # type: ignore[return-value]
