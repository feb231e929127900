"""Parts of saved states that tests write."""

from __future__ import annotations

STREAMS = {
    "torch": 0,
    "cuda": [],
    "numpy": {"words": 0, "position": 0, "gauss": None},
    "python": {"version": 3, "words": 0, "gauss": None},
}
"""The random streams of a rank."""
