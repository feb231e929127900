"""Resizes camera frames to the same pixels as TensorFlow, at a fraction of the cost.

octo and dlimp resize by `tf.image.resize(frame, size, "lanczos3", antialias=True)`, then round and
clip. Its operation (ScaleAndTranslate) filters rows, then columns. Rows are vectorised over a whole
row of pixels, columns only over the 3 colours of one pixel. Here it is called once for each axis,
with that axis as rows and all else as colours, and a transposition between: the same sums in the
same order, so that pixels are bitwise equal.
"""

from __future__ import annotations

from typing import Any

from robomimic_ddp.config.rlds_keys import DEFAULTS
from robomimic_ddp.data.rlds.tf_import import import_tensorflow

DEFAULT_FILTER = DEFAULTS["observation.image_filter"]
_PLAIN = "bilinear"
_WHOLE = 2.0**23
"""From here on float32 are integers, whose lowest byte is that of the float32."""


def plain_resize(frames: Any, target: tuple[int, int], name: str) -> Any:
    """TensorFlow: uint8 [N, h, w, 3] or [h, w, 3] -> the same of size `target`, by TensorFlow's
    operation for the filter `name`, as hosts do. Also for unknown sizes.
    """
    tf = import_tensorflow()
    return tf.cast(tf.clip_by_value(tf.round(_filtered(frames, target, name)), 0, 255), tf.uint8)


def resize_frame(frame: Any, target: tuple[int, int], name: str) -> Any:
    """TensorFlow: a faster `plain_resize` of [h, w, 3] of a known size."""
    tf = import_tensorflow()
    height, width, colours = frame.shape
    high, wide = target
    if (height, width) == (high, wide):
        return frame
    if name == _PLAIN:
        return _whole(_filtered(frame, target, name))
    # Each pixel is in several sums: convert it once.
    floats = tf.cast(tf.reshape(frame, [1, height, 1, -1]), tf.float32)
    rows = _filtered(floats, (high, 1), name)
    turned = tf.reshape(tf.transpose(tf.reshape(rows, [high, -1])), [1, width, 1, -1])
    resized = _whole(tf.clip_by_value(_filtered(turned, (wide, 1), name), 0.0, 255.0))
    return tf.reshape(tf.transpose(tf.reshape(resized, [-1, high])), [high, wide, colours])


def _filtered(frames: Any, target: tuple[int, int], name: str) -> Any:
    """TensorFlow: [(N,) h, w, C] -> float32 [(N,) *target, C], neither rounded nor clipped."""
    method = name if name == "lanczos3" else "bilinear"
    resize = import_tensorflow().image.resize
    return resize(frames, target, method, antialias=name != _PLAIN)


def _whole(values: Any) -> Any:
    """TensorFlow: float32 in 0 to 255 -> uint8 as by tf.round, by a sum's rounding: cheaper."""
    tf = import_tensorflow()
    return tf.cast(tf.bitcast(values + _WHOLE, tf.int32), tf.uint8)
