"""Reads numpy's arrays, numbers and dtypes from a pickle without numpy's own constructors.

Those trust the file: a scalar or an array of an object dtype, or a wrong number of bytes, reaches
memory. Objects here keep the value while the file is read; `resolved` puts it in their place.
"""

from __future__ import annotations

import math
import re
from pickle import UnpicklingError
from typing import Any

import numpy as np

from robomimic_ddp.config import tree

_KINDS = re.compile(r"b1|[iu][1248]|f[248]|c(8|16)|[SU](0|[1-9]\d{0,5})")


class _Dtype:
    """Stands for `numpy.dtype`: numbers and text of a fixed length."""

    def __init__(self, name: Any, *_: Any) -> None:
        if not (isinstance(name, str) and _KINDS.fullmatch(name)):
            raise UnpicklingError(f"GLOBAL numpy.dtype of {str(name)[:40]!r} is not allowed")
        self.value = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if order not in ("<", ">", "|", "="):
            raise UnpicklingError(f"a dtype has the byte order {str(order)[:40]!r}")
        self.value = self.value.newbyteorder(order)


class _Array:
    """Stands for `numpy.ndarray`."""

    value = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, in_columns, content = state
        self.value = _array(shape, dtype, content, "F" if in_columns else "C")


def _array(shape: Any, dtype: Any, content: Any, order: str) -> np.ndarray:
    """Return the array of `content`. Raises UnpicklingError if its bytes are too few or many."""
    lengths = isinstance(shape, tuple) and all(type(length) is int for length in shape)
    if not (lengths and isinstance(dtype, _Dtype) and isinstance(content, bytes)):
        raise UnpicklingError("an array is not made of a shape, a dtype and bytes")
    # Only a scalar has text of length 0: numpy would make longer texts of an array's.
    expected = math.prod(shape) * (dtype.value.itemsize or bool(shape))
    if min(shape, default=0) < 0 or len(content) != expected:
        raise UnpicklingError(f"an array of shape {shape} has {len(content)} bytes")
    return np.ndarray(shape, dtype.value, content, order=order).copy(order)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _scalar(dtype: Any, content: Any) -> Any:
    return _array((), dtype, content, "C")[()]


ALLOWED = {"numpy.dtype": _Dtype, "numpy.ndarray": _Array}
for _core in ("numpy.core", "numpy._core"):
    ALLOWED[f"{_core}.multiarray._reconstruct"] = _reconstruct
    ALLOWED[f"{_core}.multiarray.scalar"] = _scalar


def resolved(nest: Any) -> Any:
    """Return `nest` with arrays and dtypes of numpy in the place of what stands for them."""
    return tree.mapped(
        lambda value: value.value if type(value) in (_Array, _Dtype) else value, nest
    )
