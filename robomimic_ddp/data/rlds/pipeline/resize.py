"""Resize camera frames to the same pixels as TensorFlow, without it.

octo and dlimp resize by `tf.image.resize(frame, size, "lanczos3", antialias=True)`, then round and
clip. Its operation (ScaleAndTranslate) filters rows, then columns, in float32. Here each axis is
filtered with all else as lanes of vectors, and a transposition between: the same sums in the same
order, so that pixels are bitwise equal (tested). numba compiles that; without it numpy makes the
same numbers, slower.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any

import numpy as np

from robomimic_ddp.config import paths
from robomimic_ddp.config.host.rlds_keys import DEFAULT_CACHE

_CODE = f"{DEFAULT_CACHE}/compiled"
"""Where numba keeps code: next to the indices by default. Not in train.data_cache_dir, which others
may write to: who writes there could have this process run code.
"""
_PI, _RADIUS = np.float32(3.14159265359), np.float32(3)

Spans = tuple[np.ndarray, np.ndarray]
"""First input and weights of each output: int64 [N], float32 [N, taps], zeros after the last."""


def resize_frame(frame: np.ndarray, target: tuple[int, int], out: np.ndarray) -> None:
    """Resize uint8 [h, w, 3] into `out` of size `target`."""
    height, width, _ = frame.shape
    if (height, width) == target:
        out[...] = frame
    else:
        spans = *_spans(height, target[0]), *_spans(width, target[1])
        compiled = compiled_filter()
        fits = compiled is not None and compiled.fits(frame.shape, target)
        (compiled if fits else filter_in_numpy)(frame, *spans, out)


@lru_cache(maxsize=256)
def _spans(size: int, wanted: int) -> Spans:
    """Return the spans of TensorFlow's ComputeSpansCore for lanczos3 with antialias, in its float32
    steps.
    """
    unit, half = np.float32(1), np.float32(0.5)
    inverse = unit / (np.float32(wanted) / np.float32(size))
    scale = max(inverse, unit)
    reach = _RADIUS * scale
    starts, weights = np.zeros(wanted, np.int64), []
    for x in range(wanted):
        sample = (np.float32(x) + half) * inverse
        first = max(math.ceil(sample - reach - half), 0)
        end = min(math.floor(sample + reach - half), size - 1) + 1
        raw, total = [], np.float32(0)
        for source in range(first, end):
            distance = abs((np.float32(source) + half - sample) * (unit / scale))
            raw.append(_weight(distance))
            total += raw[-1]
        starts[x] = first
        weights.append([weight * (unit / total) for weight in raw])
    table = np.zeros((wanted, max(map(len, weights))), np.float32)
    for row, values in zip(table, weights):
        row[: len(values)] = values
    return starts, table


def _weight(x: np.float32) -> np.float32:
    if x > _RADIUS:
        return np.float32(0)
    if x <= 1e-3:
        return np.float32(1)
    return _RADIUS * _sine(_PI * x) * _sine(_PI * x / _RADIUS) / (_PI * _PI * x * x)


def _sine(x: np.float32) -> np.float32:
    """Return the C library's float32 sine, as in TensorFlow: 1 in 70 is not the rounded double."""
    return np.float32(_library().sinf(x))


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.sinf.restype, library.sinf.argtypes = ctypes.c_float, [ctypes.c_float]
    return library


def filter_in_numpy(
    frame: np.ndarray,
    row_starts: np.ndarray,
    row_weights: np.ndarray,
    column_starts: np.ndarray,
    column_weights: np.ndarray,
    out: np.ndarray,
) -> None:
    """Filter uint8 [h, w, C] along rows and columns (`Spans`), round and clip it into `out`. Has
    the numbers of the compiled filter, and is several times slower.
    """
    height, width, colours = frame.shape
    rows = _along(frame.reshape(height, -1).astype(np.float32), row_starts, row_weights)
    turned = rows.reshape(-1, width, colours).transpose(1, 0, 2).reshape(width, -1)
    total = _along(turned, column_starts, column_weights)
    pixels = np.rint(np.clip(total, 0, 255))
    out[...] = pixels.reshape(len(column_starts), -1, colours).transpose(1, 0, 2)


def _along(values: np.ndarray, starts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Filter float32 [n, lanes] along its first axis, taps added one by one."""
    total = np.zeros((len(starts), values.shape[1]), np.float32)
    for tap in range(weights.shape[1]):
        source = np.minimum(starts + tap, len(values) - 1)
        total += weights[:, tap, None] * values[source]
    return total


@lru_cache(maxsize=1)
def compiled_filter() -> Any:
    """Return the `CompiledFilter`; None without numba."""
    try:
        from robomimic_ddp.data.rlds.pipeline.compiled import CompiledFilter
    except ImportError:
        return None
    folder = paths.expanded(_CODE)
    return CompiledFilter(str(folder) if folder.is_absolute() else "")  # no home: numba's choice
