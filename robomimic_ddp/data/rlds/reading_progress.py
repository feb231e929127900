"""Progress of reading record files: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LINE_SECONDS = 30.0
"""Between two lines without a terminal, and before the first."""


@contextmanager
def reading(what: str, total: int) -> Iterator[Callable[[int], Any]]:
    """Yield a function that takes numbers of bytes that were read, of `total`. Shows
    progress, speed and the time left on stderr; nothing for a total of 0.
    """
    from tqdm import tqdm

    is_terminal = getattr(sys.stderr, "isatty", bool)()  # a host's logger has no isatty
    waits = {} if is_terminal else {"mininterval": LINE_SECONDS, "delay": LINE_SECONDS}
    shown = {"desc": what, "unit": "B", "unit_scale": True, "file": sys.stderr, **waits}
    with tqdm(total=total, disable=not total, **shown) as bar:
        yield bar.update
