"""Walks nested dicts, lists and tuples, and tells what a config's value is.

torch.utils._pytree does the same, and takes five times as long for a batch (docs/decisions.md).
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def mapped(function: Callable[[Any], Any], nest: Any) -> Any:
    """Return a copy of `nest` with function(value) for each value that is not a container."""
    if isinstance(nest, dict):
        copied = nest.copy()  # of its class
        if type(nest) is OrderedDict:
            vars(copied).update(vars(nest))  # a state_dict's _metadata
        copied.update((key, mapped(function, part)) for key, part in nest.items())
        return copied
    if isinstance(nest, (list, tuple)):
        parts = [mapped(function, part) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    return function(nest)


def leaves(nest: Any) -> Iterator[Any]:
    """Yield each value of `nest` that is not a dict, list or tuple."""
    if isinstance(nest, (dict, list, tuple)):
        for part in nest.values() if isinstance(nest, dict) else nest:
            yield from leaves(part)
    else:
        yield nest


def named(nest: Any, separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("a.b", value) in nested mappings, none in others; lists and empty mappings are
    values.
    """
    for key, value in nest.items() if isinstance(nest, Mapping) else ():
        if isinstance(value, Mapping) and value:
            yield from named(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value


def at(nest: Any, dotted: str) -> Any:
    """Return the value at "a.b" in nested mappings; None if there is none."""
    for part in dotted.split("."):
        nest = nest.get(part) if isinstance(nest, Mapping) else None
    return nest


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    """Return whether `value` is an integer from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_finite(value: Any) -> bool:
    """Return whether `value` is a number that a float can have; an int may be larger."""
    return is_number(value) and abs(value) <= sys.float_info.max


def are_weights(values: Sequence[Any]) -> bool:
    """Return whether `values` are numbers of at least 0, not all 0, with a finite sum."""
    numbers = all(is_finite(value) and value >= 0 for value in values)
    return numbers and 0 < sum(values) <= sys.float_info.max
