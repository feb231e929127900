"""The filters by which camera frames are resized, as hosts have them, at a fraction of the cost.

Hosts that read through octo and dlimp resize by `tf.image.resize(frame, size, "lanczos3",
antialias=True)`, then round and clip. Its operation (ScaleAndTranslate) goes pixel by pixel. The
same filter is two products with matrices that are zero but for a band: here each is cut into blocks
of a few outputs and the pixels that those reach, and multiplied as small dense matrices, so that
next to no zeros are.

The weights are TensorFlow's to the last bits; sums are taken in another order, so that a value in
the middle between two may be rounded the other way. With lanczos3 that is 1 value of 10,000 at
most, by 1 of 255; with bilinear_antialias, whose weights are simple fractions and meet exact halves
more often, 1 of 1,000. A frame is resized alike whatever frames come with it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from robomimic_ddp.rlds.keys import DEFAULTS
from robomimic_ddp.rlds.tf_import import import_tensorflow

FILTERS = ("lanczos3", "bilinear", "bilinear_antialias")
"""lanczos3: antialiased, as dlimp's; bilinear: the 2 x 2 pixels around each sample, whatever the
factor; bilinear_antialias: its triangle widened by the factor.
"""
DEFAULT_FILTER = DEFAULTS["observation.image_filter"]
_PLAIN = "bilinear"
_BLOCK = 8
"""Outputs of a block: the cheapest from 180x320 to 128x128, of 4, 8, 16 and 32."""
_WHOLE = np.float32(2**23)
"""From here on float32 holds whole numbers only, the lowest 8 bits of which are its lowest byte."""


def plain_resize(frames: Any, target: tuple[int, int], name: str) -> Any:
    """TensorFlow: uint8 [N, h, w, 3] or [h, w, 3] -> the same of size `target`, by TensorFlow's own
    operation for the filter `name`: hosts' way, and for sizes that are not fixed.
    """
    tf = import_tensorflow()
    method = name if name == "lanczos3" else "bilinear"
    resized = tf.image.resize(frames, target, method, antialias=name != _PLAIN)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)


def resize_frame(frame: Any, target: tuple[int, int], name: str) -> Any:
    """TensorFlow: uint8 [h, w, 3] of a fixed size -> uint8 [*target, 3], by the filter `name`.

    One of the wanted size is left as it is, as the filters would leave it.
    """
    tf = import_tensorflow()
    height, width, colours = frame.shape
    if (height, width) == tuple(target):
        return frame
    if name == _PLAIN:
        return _whole(tf.image.resize(frame, target, name))
    rows = _product(tf.cast(tf.reshape(frame, [height, -1]), tf.float32), target[0], name)
    columns = tf.reshape(tf.transpose(rows), [width, colours * target[0]])
    resized = _whole(_product(columns, target[1], name))
    turned = tf.transpose(tf.reshape(resized, [target[1] * colours, target[0]]))
    return tf.reshape(turned, [*target, colours])


def _product(values: Any, target: int, name: str) -> Any:
    """TensorFlow: float32 [n, M] -> [target, M], filtered along the first axis."""
    tf = import_tensorflow()
    place, weights = _blocks(target, int(values.shape[0]), name)
    blocks, reach = place.shape
    reached = tf.reshape(tf.gather(values, place.reshape(-1)), [blocks, reach, -1])
    return tf.reshape(tf.matmul(weights, reached), [-1, values.shape[1]])[:target]


def _whole(values: Any) -> Any:
    """TensorFlow: float32 -> uint8: clipped, as Lanczos overshoots, and rounded to the nearest, the
    even one of two, as tf.round does: by the sum's own rounding, which is cheaper.
    """
    tf = import_tensorflow()
    shifted = tf.minimum(tf.maximum(values, 0.0), 255.0) + _WHOLE
    return tf.cast(tf.bitcast(shifted, tf.int32), tf.uint8)


@cache
def _blocks(target: int, stored: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """`axis_weights` as blocks of outputs: the pixels that each reaches, int32 [blocks, reach], and
    their weights, float32 [blocks, outputs, reach]. Outputs beyond `target` have no weights.
    """
    whole = axis_weights(target, stored, name)
    outputs = min(_BLOCK, target)
    parts = [whole[begin : begin + outputs] for begin in range(0, target, outputs)]
    reached = [np.flatnonzero(part.any(0)) for part in parts]
    reach = max(places[-1] + 1 - places[0] for places in reached)
    first = [min(places[0], stored - reach) for places in reached]
    place = np.array(first, np.int32)[:, None] + np.arange(reach, dtype=np.int32)
    weights = np.zeros((len(parts), outputs, reach), np.float32)
    for number, part in enumerate(parts):
        weights[number, : len(part)] = part[:, place[number]]
    return place, weights


def axis_weights(target: int, stored: int, name: str) -> np.ndarray:
    """float32 [target, stored]: how much of each stored pixel is in each one delivered, along one
    axis, by an antialiased filter.

    As TensorFlow's scale_and_translate_op.cc computes it, in float32 like there, since 1e-3 of a
    grey level decides what is rounded up: pixels have their centres at halves, the kernel is
    widened by the factor where that shrinks, and weights over the pixels inside are made to sum to
    1.
    """
    one, half = np.float32(1), np.float32(0.5)
    kernel, radius = (_lanczos3, 3) if name == "lanczos3" else (_triangle, 1)
    factor = np.float32(1 / np.float64(np.float32(target) / np.float32(stored)))
    widened = max(factor, one)
    centre = (np.arange(target, dtype=np.float32) + half) * factor
    span = np.float32(radius) * widened
    first = np.clip(np.ceil(centre - span - half), 0, stored - 1)[:, None]
    last = np.clip(np.floor(centre + span - half), 0, stored - 1)[:, None]
    pixel = np.arange(stored, dtype=np.float32)
    distance = np.abs(pixel + half - centre[:, None]) * (one / widened)
    inside = (pixel >= first) & (pixel <= last)
    weights = np.where(inside, kernel(distance), np.float32(0))
    total = np.cumsum(weights, 1, dtype=np.float32)[:, -1:]
    return weights * (one / total)


def _lanczos3(distance: np.ndarray) -> np.ndarray:
    near, radius, pi = np.float32(1e-3), np.float32(3), np.float32(np.pi)
    x = np.maximum(distance, near)
    value = radius * np.sin(pi * x) * np.sin(pi * x / radius) / (pi * pi * x * x)
    value = np.where(distance <= near, np.float32(1), value)
    return np.where(distance > radius, np.float32(0), value)


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(np.float32(1) - distance, np.float32(0))
