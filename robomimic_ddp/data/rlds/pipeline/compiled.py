"""The filters of `resize`, compiled by numba. Without numba this module cannot be imported.

Each loop is a function that LLVM makes vectors of; in one function it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

_BLOCK = 16
"""Rows and columns that are transposed in vectors: a power of two."""


def compile_filter(folder: str, *example: Any) -> Callable[..., Any]:
    """Return `_filtered`, compiled for arguments like `example`. numba keeps the code in
    NUMBA_CACHE_DIR, else in `folder`, else beside this file or in the user's cache; where none can
    be written, each process compiles.
    """
    before = config.CACHE_DIR
    config.CACHE_DIR = before or folder
    try:
        compiled = numba.njit(nogil=True, cache=True)(_filtered)
        compiled(*example)
    # numba has no folder, its disk is full, or what is kept there is damaged: many things.
    except Exception:
        compiled = numba.njit(nogil=True)(_filtered)
        compiled(*example)
    finally:
        config.CACHE_DIR = before
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


@intrinsic
def _transpose_block(
    context: Any, values: Any, first: Any, width: Any, out: Any, to: Any, height: Any
) -> Any:
    """Transpose the _BLOCK x _BLOCK floats of an array that begin with its number `first`, in rows
    of `width`, into another, by exchanging halves, quarters, ... of vectors: LLVM finds no vectors
    in the loop of `_transpose`.
    """
    sizes = types.intp, types.intp
    signature = types.void(values, *sizes, out, *sizes)
    vector = ir.VectorType(ir.FloatType(), _BLOCK)
    numbers = ir.VectorType(ir.IntType(32), _BLOCK)

    def generate(target: Any, builder: Any, _: Any, arguments: Any) -> Any:
        def row(number: int, array: int) -> Any:
            made = cgutils.create_struct_proxy(signature.args[array])
            start, stride = arguments[array + 1 : array + 3]
            distance = builder.mul(stride, ir.Constant(stride.type, number))
            floats = made(target, builder, arguments[array]).data
            place = builder.gep(floats, [builder.add(start, distance)])
            return builder.bitcast(place, vector.as_pointer())

        rows = [builder.load(row(number, 0), align=4) for number in range(_BLOCK)]
        step = 1
        while step < _BLOCK:
            lows = [x + (_BLOCK - step) * bool(x & step) for x in range(_BLOCK)]
            highs = [x + (_BLOCK if x & step else step) for x in range(_BLOCK)]
            for number in (number for number in range(_BLOCK) if not number & step):
                pair = rows[number], rows[number | step]
                for place, order in ((number, lows), (number | step, highs)):
                    rows[place] = builder.shuffle_vector(*pair, ir.Constant(numbers, order))
            step *= 2
        for number in range(_BLOCK):
            builder.store(rows[number], row(number, 3), align=4)
        return target.get_dummy_value()

    return signature, generate


@numba.njit
def _transpose(values: Any, height: int, out: Any) -> None:
    """Transpose [height, w] into [w, height], both flat."""
    width = values.size // height
    high, wide = height - height % _BLOCK, width - width % _BLOCK
    for left in range(0, wide, _BLOCK):
        for top in range(0, high, _BLOCK):
            _transpose_block(values, top * width + left, width, out, left * height + top, height)
    for y in range(height):
        for x in range(wide if y < high else 0, width):
            out[x * height + y] = values[y * width + x]


@numba.njit
def _round(values: Any, out: Any) -> None:
    """Round and clip float32 [N] to uint8."""
    for number in range(values.size):
        value = min(max(values[number], np.float32(0)), np.float32(255))
        out[number] = np.uint8(np.int32(np.rint(value)))


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
    final: Any,
    out: Any,
) -> None:
    """See `resize.filter_in_numpy`; those before `out` are `resize._arguments`."""
    _copy(frame.reshape(frame.size), floats.reshape(floats.size))
    _add_taps(floats, row_starts, row_weights, rows)
    _transpose(rows.reshape(rows.size), len(rows), turned.reshape(turned.size))
    _add_taps(turned, column_starts, column_weights, columns)
    _transpose(columns.reshape(columns.size), final.size // len(rows), final)
    _round(final, out.reshape(out.size))
