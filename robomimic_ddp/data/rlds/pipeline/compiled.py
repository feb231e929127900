"""The filters of `resize`, compiled by numba. Without numba this module cannot be imported.

Each loop is a function that LLVM makes vectors of; in one function it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

_BLOCK = 16


def compile_filter(*example: Any) -> Callable[..., Any]:
    """Return `_filtered`, compiled for arguments like `example`. numba keeps the code beside this
    file or in the user's cache; where neither can be written, each process compiles.
    """
    try:
        compiled = numba.njit(nogil=True, cache=True)(_filtered)
        compiled(*example)
    except (RuntimeError, OSError):  # numba's for no such folder, and a full disk
        compiled = numba.njit(nogil=True)(_filtered)
        compiled(*example)
    return compiled


@numba.njit
def _copy(values: Any, out: Any) -> None:
    """Copy whole numbers [N] as float32."""
    for number in range(values.size):
        out[number] = values[number]


@numba.njit
def _add_taps(values: Any, starts: Any, weights: Any, out: Any) -> None:
    """Filter float32 [n, lanes] along its first axis, taps added one by one."""
    count, lanes = values.shape
    for y in range(len(starts)):
        total, start = out[y], starts[y]
        for lane in range(lanes):
            total[lane] = np.float32(0)
        for tap in range(min(weights.shape[1], count - start)):
            weight, source = weights[y, tap], values[start + tap]
            for lane in range(lanes):
                total[lane] += weight * source[lane]


@numba.njit
def _transpose(values: Any, out: Any) -> None:
    """Transpose [h, w], in blocks that stay in the processor's cache."""
    height, width = values.shape
    for top in range(0, height, _BLOCK):
        for left in range(0, width, _BLOCK):
            for x in range(left, min(left + _BLOCK, width)):
                for y in range(top, min(top + _BLOCK, height)):
                    out[x, y] = values[y, x]


@numba.njit
def _round(values: Any, out: Any) -> None:
    """Round and clip float32 [w, C * h] to uint8 [h, w, C]."""
    high, wide, colours = out.shape
    for x in range(wide):
        for c in range(colours):
            for y in range(high):
                value = min(max(values[x, c * high + y], np.float32(0)), np.float32(255))
                out[y, x, c] = np.uint8(np.int32(np.rint(value)))


def _filtered(
    frame: Any, row_starts: Any, row_weights: Any, column_starts: Any, column_weights: Any
) -> Any:
    """See `resize.filter_in_numpy`."""
    height, width, colours = frame.shape
    high, wide = len(row_starts), len(column_starts)
    floats = np.empty((height, width * colours), np.float32)
    rows = np.empty((high, width * colours), np.float32)
    turned = np.empty((width, colours * high), np.float32)
    columns = np.empty((wide, colours * high), np.float32)
    out = np.empty((high, wide, colours), np.uint8)
    _copy(frame.reshape(frame.size), floats.reshape(floats.size))
    _add_taps(floats, row_starts, row_weights, rows)
    _transpose(rows, turned.reshape(width * colours, high))
    _add_taps(turned, column_starts, column_weights, columns)
    _round(columns, out)
    return out
