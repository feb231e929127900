"""Which cases of a table run with every change, and which are left to scripts/test.sh --all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_but(
    fast: Iterable[str], cases: Iterable[Any], name_of: Callable[[Any], str] = str
) -> list:
    """`cases` for a test's parameter, or tuples for several; all but those with names in `fast` are
    marked slow.
    """
    cases, fast = list(cases), set(fast)
    assert fast <= {*map(name_of, cases)}, "a fast case is no case"
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case in cases
        for mark in [() if name_of(case) in fast else pytest.mark.slow]
    ]
