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
    """Filter float32 [n, lanes] along its first axis, taps added one by one: four in one go through
    memory, in the same order.
    """
    count, lanes = values.shape
    for y in range(len(starts)):
        total, start = out[y], starts[y]
        taps, tap = min(weights.shape[1], count - start), 0
        for lane in range(lanes):
            total[lane] = np.float32(0)
        while tap + 3 < taps:
            w0, w1 = weights[y, tap], weights[y, tap + 1]
            w2, w3 = weights[y, tap + 2], weights[y, tap + 3]
            v0, v1 = values[start + tap], values[start + tap + 1]
            v2, v3 = values[start + tap + 2], values[start + tap + 3]
            for lane in range(lanes):
                two = (total[lane] + w0 * v0[lane]) + w1 * v1[lane]
                total[lane] = (two + w2 * v2[lane]) + w3 * v3[lane]
            tap += 4
        while tap < taps:
            weight, source = weights[y, tap], values[start + tap]
            for lane in range(lanes):
                total[lane] += weight * source[lane]
            tap += 1


@numba.njit
def _transpose(values: Any, out: Any) -> None:
    """Transpose [h, w], in blocks of a fixed size, which LLVM makes vectors of."""
    height, width = values.shape
    high, wide = height - height % _BLOCK, width - width % _BLOCK
    for top in range(0, high, _BLOCK):
        for left in range(0, wide, _BLOCK):
            for x in range(_BLOCK):
                for y in range(_BLOCK):
                    out[left + x, top + y] = values[top + y, left + x]
    for y in range(height):
        for x in range(wide if y < high else 0, width):
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
    frame: Any,
    row_starts: Any,
    row_weights: Any,
    column_starts: Any,
    column_weights: Any,
    floats: Any,
    rows: Any,
    turned: Any,
    columns: Any,
    out: Any,
) -> None:
    """See `resize.filter_in_numpy`; the four before `out` are `resize.scratch`."""
    high = len(row_starts)
    _copy(frame.reshape(frame.size), floats.reshape(floats.size))
    _add_taps(floats, row_starts, row_weights, rows)
    _transpose(rows, turned.reshape(rows.shape[1], high))
    _add_taps(turned, column_starts, column_weights, columns)
    _round(columns, out)
