"""Action vectors from an episode's record: DROID's position, 6-D rotation and gripper, or plain
features.

The 6-D rotation is the first two rows of the rotation matrix (Zhou et al., CVPR 2019, use columns;
DROID's code uses rows, so rows it is). The matrix is Rz(z) @ Ry(y) @ Rx(x) for Euler angles (x, y,
z) in radians, the convention of
`tensorflow_graphics.geometry.transformation.rotation_matrix_3d.from_euler`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robomimic_ddp.rlds.schema import ActionPart
from robomimic_ddp.rlds.tf_import import import_tensorflow


def euler_to_rot_6d(angles: Any, math: Any) -> Any:
    """Euler angles (x, y, z) [..., 3] -> [..., 6]: rows 0 and 1 of Rz @ Ry @ Rx.

    `math` is numpy or TensorFlow (`sin`, `cos`, `stack`); the dtype stays.
    """
    x, y, z = angles[..., 0], angles[..., 1], angles[..., 2]
    sin_x, sin_y, sin_z = math.sin(x), math.sin(y), math.sin(z)
    cos_x, cos_y, cos_z = math.cos(x), math.cos(y), math.cos(z)
    return math.stack(
        [
            cos_z * cos_y,
            cos_z * sin_y * sin_x - sin_z * cos_x,
            cos_z * sin_y * cos_x + sin_z * sin_x,
            sin_z * cos_y,
            sin_z * sin_y * sin_x + cos_z * cos_x,
            sin_z * sin_y * cos_x - cos_z * sin_x,
        ],
        -1,
    )


def convert_part(values: Any, part: ActionPart, math: Any) -> Any:
    """The step feature `part.source` [T, N] -> the part's numbers [T, part.size], in the feature's
    dtype.
    """
    columns = values[:, part.start : part.stop]
    return euler_to_rot_6d(columns, math) if part.form == "euler_to_rot_6d" else columns


def action_vectors(steps: Mapping[str, Any], parts: Mapping[str, ActionPart]) -> Any:
    """TensorFlow: step features {name: [T, N]} -> raw actions float32 [T, A], parts in the order of
    `parts`.

    Converted in the stored precision and cast at the end: float32 sines of float64 angles would
    already differ.
    """
    tf = import_tensorflow()
    converted = []
    for part in parts.values():
        values = steps[part.source]
        values = values[:, None] if values.shape.rank == 1 else values
        converted.append(tf.cast(convert_part(values, part, tf), tf.float32))
    return tf.concat(converted, axis=-1)


def split_by_key(vectors: np.ndarray, parts: Mapping[str, ActionPart]) -> dict[str, np.ndarray]:
    """Action vectors [..., A] -> {action key: [..., size of that part]}, as views."""
    ends = np.cumsum([part.size for part in parts.values()])
    return {
        key: vectors[..., end - part.size : end] for (key, part), end in zip(parts.items(), ends)
    }
