"""Resizes camera frames to the same pixels as TensorFlow, without it.

octo and dlimp resize by `tf.image.resize(frame, size, "lanczos3", antialias=True)`, then round and
clip. Its operation (ScaleAndTranslate) filters rows, then columns, in float32. Here each axis is
filtered with all else as lanes of a vector, and a transposition between: the same sums in the same
order, so that pixels are bitwise equal (tested). numba compiles that; without it numpy makes the
same numbers, slower.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from robomimic_ddp.config import paths
from robomimic_ddp.config.rlds_keys import DEFAULT_CACHE, DEFAULTS

DEFAULT_FILTER = DEFAULTS["observation.image_filter"]
_CODE = f"{DEFAULT_CACHE}/compiled"
"""Where numba keeps code: beside the indices by default. Not in train.data_cache_dir, which others
may write to: who writes there could have this process run code.
"""
_PLAIN = "bilinear"
_PI = np.float32(3.14159265359)
_RADIUS = {"lanczos3": 3.0, "bilinear_antialias": 1.0}

_kept = threading.local()
_MOST_SIZES = 8
_LINE = 16
"""Floats in a line of the processor's cache."""

Spans = tuple[np.ndarray, np.ndarray]
"""First input and weights of each output: int64 [N], float32 [N, taps], zeros after the last."""


def resize_frame(frame: np.ndarray, target: tuple[int, int], name: str, out: np.ndarray) -> None:
    """uint8 [h, w, C] into `out` of size `target`, by TensorFlow's operation for the filter
    `name`.
    """
    height, width, _ = frame.shape
    if (height, width) == target:
        out[...] = frame
    elif name == _PLAIN:
        rows, columns = _neighbours(height, target[0]), _neighbours(width, target[1])
        out[...] = _interpolated(frame, rows, columns)
    else:
        filtering()(frame, *_arguments(frame.shape, target, name), out)


@lru_cache(maxsize=256)
def _spans(size: int, wanted: int, name: str) -> Spans:
    """TensorFlow's ComputeSpansCore with antialias, in its float32 steps."""
    one, half = np.float32(1), np.float32(0.5)
    inverse = one / (np.float32(wanted) / np.float32(size))
    scale = max(inverse, one)
    reach = np.float32(_RADIUS[name]) * scale
    starts, weights = np.zeros(wanted, np.int64), []
    for x in range(wanted):
        sample = (np.float32(x) + half) * inverse
        first = min(max(math.ceil(sample - reach - half), 0), size - 1)
        end = min(max(math.floor(sample + reach - half), 0), size - 1) + 1
        raw, total = [], np.float32(0)
        for source in range(first, end):
            distance = abs((np.float32(source) + half - sample) * (one / scale))
            raw.append(_weight(distance, name))
            total += raw[-1]
        starts[x] = first
        weights.append([weight * (one / total) for weight in raw])
    table = np.zeros((wanted, max(map(len, weights))), np.float32)
    for row, values in zip(table, weights):
        row[: len(values)] = values
    return starts, table


def _weight(x: np.float32, name: str) -> np.float32:
    if name != "lanczos3":
        return max(np.float32(0), np.float32(1) - x)
    radius = np.float32(_RADIUS[name])
    if x > radius:
        return np.float32(0)
    if x <= 1e-3:
        return np.float32(1)
    return radius * _sine(_PI * x) * _sine(_PI * x / radius) / (_PI * _PI * x * x)


def _sine(x: np.float32) -> np.float32:
    """The C library's float32 sine, as in TensorFlow: 1 in 70 is not the rounded double."""
    return np.float32(_library().sinf(x))


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.sinf.restype, library.sinf.argtypes = ctypes.c_float, [ctypes.c_float]
    return library


def _arguments(
    shape: tuple[int, ...], target: tuple[int, int], name: str
) -> tuple[np.ndarray, ...]:
    """Spans, and what the compiled filter writes between its passes, kept for this thread: with new
    memory the system's clearing of pages would take longer than the filter.
    """
    kept = _kept.__dict__
    arguments = kept.get((shape, target, name))
    if arguments is None:
        (height, width, colours), (high, wide) = shape, target
        lanes = (height, width * colours), (high, width * colours)
        turned = (width, colours * high), (wide, colours * high)
        scratch = map(_aligned, (*lanes, *turned, (high * wide * colours,)))
        if len(kept) >= _MOST_SIZES:
            kept.clear()
        spans = *_spans(height, high, name), *_spans(width, wide, name)
        arguments = kept[shape, target, name] = *spans, *scratch
    return arguments


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """New float32 that begin where a line of the processor's cache does: vectors that cross into
    two take half as long again.
    """
    size = math.prod(shape)
    memory = np.empty(size + _LINE, np.float32)
    first = -memory.ctypes.data % (4 * _LINE) // 4
    return memory[first : first + size].reshape(shape)


def filter_in_numpy(
    frame: np.ndarray,
    row_starts: np.ndarray,
    row_weights: np.ndarray,
    column_starts: np.ndarray,
    column_weights: np.ndarray,
    *more: np.ndarray,
) -> None:
    """uint8 [h, w, C], filtered along rows and columns (`Spans`), rounded and clipped, into the
    last argument. The numbers of the compiled one, several times slower.
    """
    height, width, colours = frame.shape
    rows = _along(frame.reshape(height, -1).astype(np.float32), row_starts, row_weights)
    turned = rows.reshape(-1, width, colours).transpose(1, 0, 2).reshape(width, -1)
    total = _along(turned, column_starts, column_weights)
    whole = np.rint(np.clip(total, 0, 255)).astype(np.uint8)
    more[-1][...] = whole.reshape(len(column_starts), -1, colours).transpose(1, 0, 2)


def _along(values: np.ndarray, starts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Filter float32 [n, lanes] along its first axis, taps added one by one."""
    total = np.zeros((len(starts), values.shape[1]), np.float32)
    for tap in range(weights.shape[1]):
        source = np.minimum(starts + tap, len(values) - 1)
        total += weights[:, tap, None] * values[source]
    return total


def _neighbours(size: int, wanted: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """TensorFlow's ResizeBilinear with half-pixel centres: two inputs and the second's share."""
    scale = np.float32(size) / np.float32(wanted)
    place = (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    low = np.floor(place)
    lower = np.maximum(low.astype(np.int64), 0)
    upper = np.minimum(np.ceil(place).astype(np.int64), size - 1)
    return lower, upper, place - low


def _interpolated(frame: np.ndarray, rows: tuple, columns: tuple) -> np.ndarray:
    top, bottom, down = rows
    left, right, along = columns
    down, along = down[:, None, None], along[None, :, None]

    def line(numbers: np.ndarray) -> np.ndarray:
        values = frame[numbers].astype(np.float32)
        first = values[:, left]
        return first + (values[:, right] - first) * along

    upper = line(top)
    return np.rint(upper + (line(bottom) - upper) * down).astype(np.uint8)


@lru_cache(maxsize=1)
def filtering() -> Callable[..., None]:
    """`filter_in_numpy`, compiled by numba where there is one."""
    try:
        from robomimic_ddp.data.rlds.pipeline.compiled import compile_filter
    except ImportError:
        return filter_in_numpy
    frame, out = np.zeros((2, 2, 3), np.uint8), np.zeros((1, 1, 3), np.uint8)
    arguments = _arguments(frame.shape, (1, 1), "lanczos3")
    return compile_filter(str(paths.expanded(_CODE)), frame, *arguments, out)
