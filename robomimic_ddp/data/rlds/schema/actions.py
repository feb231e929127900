"""Computes actions and states from step features, by the schema's parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.schema.fields import Part
from robomimic_ddp.data.rlds.schema.rotations import convert
from robomimic_ddp.data.rlds.tf_import import import_tensorflow


def convert_part(values: Any, part: Part, math: Any) -> Any:
    """The step feature `part.source` [T, N] -> the part's numbers [T, part.size], in the feature's
    dtype. `math` is numpy or TensorFlow.
    """
    columns = values[:, part.start : part.stop]
    return convert(columns, *part.rotation, math) if part.rotation else columns


def part_values(steps: Mapping[str, Any], part: Part) -> Any:
    """TensorFlow: step features {name: [T, ...]} -> the part's numbers, float32 [T, part.size]:
    cast after conversion, since float32 sines of float64 angles would differ.
    """
    tf = import_tensorflow()
    values = steps[part.source]
    if values.shape.rank != 2:
        values = tf.reshape(values, [tf.shape(values)[0], values.shape[1:].num_elements()])
    if part.rotation and not values.dtype.is_floating:
        values = tf.cast(values, tf.float64)
    return tf.cast(convert_part(values, part, tf), tf.float32)


def action_vectors(steps: Mapping[str, Any], parts: Mapping[str, Part]) -> Any:
    """TensorFlow: step features {name: [T, ...]} -> raw actions float32 [T, A], as in `parts`."""
    tf = import_tensorflow()
    return tf.concat([part_values(steps, part) for part in parts.values()], axis=-1)


def split_by_key(vectors: np.ndarray, parts: Mapping[str, Part]) -> dict[str, np.ndarray]:
    """Action vectors [..., A] -> {action key: [..., size of that part]}, as views."""
    ends = np.cumsum([part.size for part in parts.values()])
    return {
        key: vectors[..., end - part.size : end] for (key, part), end in zip(parts.items(), ends)
    }
