"""Decodes and resizes camera frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.pipeline.resize import DEFAULT_FILTER, plain_resize, resize_frame
from robomimic_ddp.data.rlds.tf_import import import_tensorflow


@dataclass(frozen=True)
class PictureSize:
    """Delivered height and width in pixels, and one of `rlds_keys.IMAGE_FILTERS`."""

    height: int
    width: int
    filter: str = DEFAULT_FILTER

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width


def resize_frames(frames: np.ndarray, size: PictureSize) -> np.ndarray:
    """numpy uint8 [N, h, w, 3] -> [N, height, width, 3], as in training, for rollouts."""
    tf = import_tensorflow()
    if not len(frames):
        return np.zeros((0, *size.pixels, 3), np.uint8)
    resized = [resize_frame(tf.constant(frame), size.pixels, size.filter) for frame in frames]
    return np.stack([frame.numpy() for frame in resized])


def decode(encoded: Any, stored: tuple[int | None, ...], size: PictureSize, counter: Any) -> Any:
    """TensorFlow: JPEG or PNG bytes [N] -> uint8 [N, height, width, 3]; adds N to `counter`.
    stored: (height, width) of the feature.
    """
    tf = import_tensorflow()
    with tf.control_dependencies([counter.assign_add(tf.size(encoded, out_type=tf.int64))]):
        encoded = tf.identity(encoded)
    return tf.map_fn(
        lambda data: decode_one(data, stored, size),
        encoded,
        fn_output_signature=tf.TensorSpec([*size.pixels, 3], tf.uint8),
        parallel_iterations=1,  # batches are made in parallel
    )


def decode_one(data: Any, stored: tuple[int | None, ...], size: PictureSize) -> Any:
    """TensorFlow: one of `decode`'s images, uint8 [height, width, 3]."""
    tf = import_tensorflow()
    # As in tensorflow-datasets, for the same pixels.
    frame = tf.io.decode_image(data, channels=3, expand_animations=False)
    if None in stored:
        frame.set_shape([None, None, 3])
        return plain_resize(frame, size.pixels, size.filter)
    # One by one, so that a frame stays in the processor's cache, and its pixels do not depend on
    # the batch.
    return resize_frame(tf.ensure_shape(frame, (*stored, 3)), size.pixels, size.filter)
