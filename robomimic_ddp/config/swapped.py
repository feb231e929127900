"""Attributes of other people's objects, replaced for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets attribute `name` of `owner` to `value` for the block, and puts back what was there.

    An attribute that `owner` had from its class only is removed from `owner` again.
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
