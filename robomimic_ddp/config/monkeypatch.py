"""Replaces an attribute of an object for a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets attribute `name` of `owner` to `value` for the block, and restores it after.

    If `owner` had it from its class only, the attribute is deleted from `owner`.
    """
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
