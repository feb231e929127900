"""Progress of reading record files: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

LINE_SECONDS = 30.0
"""Between two lines without a terminal."""
_REPORTED_BYTES = 2**26
"""From here on the end has a line."""


@contextmanager
def reading(what: str, total: int, share: str = "") -> Iterator[Callable[[int], Any]]:
    """For the block: a function that takes numbers of bytes that were read, of `total`. Prints
    progress to stderr, and at the end of 64 MiB or more the speed. share: what `total` is.
    """
    from tqdm import tqdm

    began = shown = time.monotonic()
    read = 0
    bar = tqdm(total=total, desc=what, unit="B", unit_scale=True, disable=None)

    def add(count: int) -> None:
        nonlocal read, shown
        read += count
        bar.update(count)
        now = time.monotonic()
        if bar.disable and now - shown >= LINE_SECONDS:
            shown, left = now, (total - read) * (now - began) / read
            rest = timedelta(seconds=round(left))
            line = f"{what}: {_rate(read, now - began)} of {gb(total)}, {rest} left"
            print(line, file=sys.stderr, flush=True)

    with bar:
        yield add
    if read >= _REPORTED_BYTES:
        print(f"{what}: {_rate(read, time.monotonic() - began)}{share}", file=sys.stderr)


def _rate(count: int, seconds: float) -> str:
    return f"{gb(count)} in {timedelta(seconds=round(seconds))}, {count / seconds / 1e6:.0f} MB/s"


def gb(count: float) -> str:
    """A number of bytes for people."""
    return f"{count / 1e9:.3g} GB"
