"""What tests do with RLDS loaders."""

from __future__ import annotations

import itertools
import time
from typing import Any


def batches(loader: Any, count: int) -> list[list[int]]:
    """The windows of each of the next `count` batches, whatever passes they belong to."""
    rows: list[list[int]] = []
    while len(rows) < count:
        rows += [batch["index"].tolist() for batch in itertools.islice(loader, count - len(rows))]
    return rows


def stream(loader: Any, count: int) -> list[int]:
    """The windows of the next `count` batches, in one list."""
    return list(itertools.chain(*batches(loader, count)))


def one_pass(*loaders: Any) -> list[int]:
    """The windows of one `iter` of each of the loaders, in one list."""
    return [i for loader in loaders for batch in loader for i in batch["index"].tolist()]


def wait_until_idle(loader: Any) -> None:
    """Return once the pipeline has stopped making batches ahead."""
    before = -1
    while loader.frames_decoded != before:
        before = loader.frames_decoded
        time.sleep(0.3)
