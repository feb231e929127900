"""The memory of our loader over many batches: flat, or it would end a month's training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from robomimic_ddp.bench.data import Server
from robomimic_ddp.bench.data_set import DataJob

BATCHES = 20_000
SIZE = "16x16:16x16"
"""So small that passes go by quickly: what grows grows by batches, blocks and passes."""
MARKS = 20
_SETTLED = 0.25
"""Share of the batches after which allocators and caches have found their size."""
MOST_GROWTH_MB = 20.0


def measure(job: DataJob, batches: int) -> dict[str, Any]:
    """Resident memory of a rank of two after each twentieth of `batches`, and whether it is flat
    after the first quarter.
    """
    job = dataclasses.replace(job, batch=4, frame_stack=1)
    server = Server(job)
    try:
        server.ask({"start": "ours", "loader": "ours", "world": 2})
        marks = []
        for number in range(MARKS):
            count = batches * (number + 1) // MARKS - batches * number // MARKS
            marks.append(server.ask({"turn": "ours", "batches": max(1, count)}))
    finally:
        server.close()
    held = [mark["rss_mb"] for mark in marks]
    settled = held[int(_SETTLED * MARKS) :]
    growth = max(settled) - settled[0]
    return {
        "loader": "ours",
        "world": 2,
        "batches": batches,
        "passes": marks[-1]["passes"],
        "rss_mb": held,
        "growth_mb": growth,
        "is_flat": growth <= MOST_GROWTH_MB,
    }


def lines(row: dict[str, Any]) -> Iterator[str]:
    """For the terminal."""
    for number, held in enumerate(row["rss_mb"], 1):
        yield f"after {row['batches'] * number // MARKS:8} batches: {held:8.1f} MB"
    verdict = "flat" if row["is_flat"] else "NOT FLAT"
    yield (
        f"{verdict}: {row['growth_mb']:.1f} MB more than after the first quarter, over "
        f"{row['passes']} passes (at most {MOST_GROWTH_MB:g} MB are taken as flat)"
    )
