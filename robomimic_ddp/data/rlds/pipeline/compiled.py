"""The filter of `resize`, compiled by numba. Without numba this module cannot be imported.

A frame is filtered in tiles of VECTOR output rows, so that what is between the passes stays in
the processor's cache: rows are filtered, the tile is transposed, columns are filtered with the
tile's rows as lanes of vectors, and the result is transposed back. LLVM finds no such vectors in
plain loops, so the two inner blocks are written in its language.
"""

from __future__ import annotations

import threading
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

VECTOR = 16
"""Floats of a vector, and rows of a tile."""
COLOURS = 3
_GROUP = COLOURS * VECTOR
"""Floats that are filtered together: their sums fit in the registers of any processor."""
_FLOATS = ir.VectorType(ir.FloatType(), VECTOR)
_NUMBERS = ir.VectorType(ir.IntType(32), VECTOR)
_kept = threading.local()


class CompiledFilter:
    """`resize.filter_in_numpy`, compiled. numba keeps the code in NUMBA_CACHE_DIR, else in
    `folder`, else next to this file or in the user's cache; where none can be written, each process
    compiles.
    """

    def __init__(self, folder: str) -> None:
        before = config.CACHE_DIR
        config.CACHE_DIR = before or folder
        try:
            self.filter = _compile(cache=True)
        # numba has no folder, its disk is full, or what is kept there is damaged: many things.
        except Exception:
            self.filter = _compile()
        finally:
            config.CACHE_DIR = before

    def fits(self, shape: tuple[int, ...], target: tuple[int, int]) -> bool:
        """Whether a frame of `shape` can be resized to `target`: very small sizes cannot."""
        return min(*shape[:2], *target) >= VECTOR

    def __call__(self, frame: np.ndarray, *spans_and_out: np.ndarray) -> None:
        """See `resize.filter_in_numpy`."""
        out = spans_and_out[-1]
        floats = frame.size + 2 * VECTOR * COLOURS * (frame.shape[1] + out.shape[1])
        self.filter(frame, _scratch(floats), *spans_and_out)


def _compile(**options: Any) -> Any:
    """Return the dispatcher of `_filter_frame`, compiled."""
    filters = numba.njit(nogil=True, **options)(_filter_frame)
    frame, scratch = np.zeros((VECTOR, VECTOR, COLOURS), np.uint8), np.zeros(2**13, np.float32)
    span = np.zeros(VECTOR, np.int64), np.ones((VECTOR, 1), np.float32)
    filters(frame, scratch, *span, *span, frame.copy())
    return filters


def _scratch(count: int) -> np.ndarray:
    """Return `count` float32, kept for this thread: with new memory the system's clearing of pages
    would take longer than the filter. They begin where a line of the processor's cache does:
    vectors that cross into two take half as long again.
    """
    scratch = getattr(_kept, "scratch", None)
    if scratch is None or len(scratch) < count:
        memory = np.empty(count + VECTOR, np.float32)
        first = -memory.ctypes.data % (4 * VECTOR) // 4
        scratch = _kept.scratch = memory[first : first + count]
    return scratch


def _pointer(target: Any, builder: Any, kind: Any, array: Any, first: Any, step: int = 0) -> Any:
    """Return a pointer to the vector at number `first` + `step` of an array's floats."""
    floats = cgutils.create_struct_proxy(kind)(target, builder, array).data
    number = builder.add(first, ir.Constant(first.type, step))
    return builder.bitcast(builder.gep(floats, [number]), _FLOATS.as_pointer())


@intrinsic
def _filter_group(
    context: Any,
    values: Any,
    first: Any,
    width: Any,
    weights: Any,
    tap: Any,
    taps: Any,
    out: Any,
    to: Any,
) -> Any:
    """Filter _GROUP lanes of `values`, in rows of `width`, from number `first` on, by `taps`
    weights from number `tap` on, into the numbers from `to` on of `out`. Taps are added in order.
    """
    size = types.intp
    signature = types.void(values, size, size, weights, size, size, out, size)

    def generate(target: Any, builder: Any, _: Any, arguments: Any) -> Any:
        values_, first_, width_, weights_, tap_, taps_, out_, to_ = arguments
        zeros = ir.Constant(_FLOATS, [0.0] * VECTOR)
        lanes = range(0, _GROUP, VECTOR)
        totals = [cgutils.alloca_once_value(builder, zeros) for _ in lanes]
        scalars = cgutils.create_struct_proxy(weights)(target, builder, weights_).data
        with cgutils.for_range(builder, taps_) as loop:
            scalar = builder.load(builder.gep(scalars, [builder.add(tap_, loop.index)]))
            single = builder.insert_element(zeros, scalar, ir.Constant(ir.IntType(32), 0))
            weight = builder.shuffle_vector(single, zeros, ir.Constant(_NUMBERS, [0] * VECTOR))
            row = builder.add(first_, builder.mul(loop.index, width_))
            for lane, total in zip(lanes, totals):
                place = _pointer(target, builder, values, values_, row, lane)
                product = builder.fmul(weight, builder.load(place, align=4))
                builder.store(builder.fadd(builder.load(total), product), total)
        for lane, total in zip(lanes, totals):
            place = _pointer(target, builder, out, out_, to_, lane)
            builder.store(builder.load(total), place, align=4)
        return target.get_dummy_value()

    return signature, generate


@intrinsic
def _transpose_square(
    context: Any, values: Any, first: Any, width: Any, out: Any, to: Any, height: Any
) -> Any:
    """Transpose VECTOR x VECTOR floats, from number `first` on in rows of `width`, to number `to`
    in rows of `height`, by exchanging halves, quarters, ... of vectors.
    """
    sizes = types.intp, types.intp
    signature = types.void(values, *sizes, out, *sizes)

    def generate(target: Any, builder: Any, _: Any, arguments: Any) -> Any:
        def row(number: int, array: int) -> Any:
            start, stride = arguments[array + 1 : array + 3]
            start = builder.add(start, builder.mul(stride, ir.Constant(stride.type, number)))
            return _pointer(target, builder, signature.args[array], arguments[array], start)

        rows = [builder.load(row(number, 0), align=4) for number in range(VECTOR)]
        step = 1
        while step < VECTOR:
            lows = [x + (VECTOR - step) * bool(x & step) for x in range(VECTOR)]
            highs = [x + (VECTOR if x & step else step) for x in range(VECTOR)]
            for number in (number for number in range(VECTOR) if not number & step):
                pair = rows[number], rows[number | step]
                for target_row, order in ((number, lows), (number | step, highs)):
                    rows[target_row] = builder.shuffle_vector(*pair, ir.Constant(_NUMBERS, order))
            step *= 2
        for number in range(VECTOR):
            builder.store(rows[number], row(number, 3), align=4)
        return target.get_dummy_value()

    return signature, generate


@numba.njit
def _filter(values: Any, height: int, starts: Any, weights: Any, out: Any) -> None:
    """Filter float32 [height, width] along its first axis, both flat."""
    width, most = len(out) // len(starts), weights.shape[1]
    for lane in range(0, width, _GROUP):
        first = min(lane, width - _GROUP)  # the last group may overlap the one before
        for row in range(len(starts)):
            start = starts[row]
            taps = min(most, height - start)
            place = start * width + first
            _filter_group(values, place, width, weights, row * most, taps, out, row * width + first)


@numba.njit
def _transpose(values: Any, height: int, out: Any) -> None:
    """Transpose float32 [height, width] into [width, height], both flat."""
    width = len(values) // height
    for y in range(0, height, VECTOR):
        top = min(y, height - VECTOR)
        for x in range(0, width, VECTOR):
            left = min(x, width - VECTOR)
            _transpose_square(values, top * width + left, width, out, left * height + top, height)


@numba.njit
def _copy(pixels: Any, out: Any) -> None:
    """Copy uint8 [N] as float32."""
    for number in range(len(pixels)):
        out[number] = pixels[number]


@numba.njit
def _round(values: Any, out: Any) -> None:
    """Round and clip float32 [N] to uint8."""
    for number in range(len(values)):
        value = min(max(values[number], np.float32(0)), np.float32(255))
        out[number] = np.uint8(np.int32(np.rint(value)))


def _filter_frame(
    frame: Any,
    scratch: Any,
    row_starts: Any,
    row_weights: Any,
    column_starts: Any,
    column_weights: Any,
    out: Any,
) -> None:
    """See `resize.filter_in_numpy`."""
    height, width, _ = frame.shape
    line, out_line = width * COLOURS, out.shape[1] * COLOURS
    sizes = VECTOR * line, VECTOR * out_line
    rows, scratch = scratch[: sizes[0]], scratch[sizes[0] :]
    turned, scratch = scratch[: sizes[0]], scratch[sizes[0] :]
    columns, scratch = scratch[: sizes[1]], scratch[sizes[1] :]
    result, floats = scratch[: sizes[1]], scratch[sizes[1] :]
    pixels, delivered = frame.reshape(frame.size), out.reshape(out.size)
    copied = 0
    for tile in range(0, len(row_starts), VECTOR):
        top = min(tile, len(row_starts) - VECTOR)  # the last tile may overlap the one before
        starts = row_starts[top : top + VECTOR]
        needed = min(height, starts[-1] + row_weights.shape[1])
        _copy(pixels[copied * line : needed * line], floats[copied * line : needed * line])
        copied = needed
        _filter(floats, height, starts, row_weights[top : top + VECTOR], rows)
        _transpose(rows, VECTOR, turned)
        _filter(turned, width, column_starts, column_weights, columns)
        _transpose(columns, out_line, result)
        _round(result, delivered[top * out_line : (top + VECTOR) * out_line])
