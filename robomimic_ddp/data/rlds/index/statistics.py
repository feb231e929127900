"""The index of episodes: place, length, statistics of actions and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Moments:
    """Per episode and dimension: mean, sum of squared deviations, min, max; float64 [E, D] each."""

    mean: np.ndarray
    sqdiff: np.ndarray
    min: np.ndarray
    max: np.ndarray

    def merged(self, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Return for all steps of the episodes, which have `lengths`, n, and mean, sqdiff, min, max
        as [1, D], merged exactly (Chan, Golub, LeVeque 1979), as the host does.
        """
        n = lengths.astype(np.float64)[:, None]
        mean = (self.mean * n).sum(0) / n.sum()
        sqdiff = self.sqdiff.sum(0) + (n * (self.mean - mean) ** 2).sum(0)
        return {
            "n": int(n.sum()),
            "mean": mean[None],
            "sqdiff": sqdiff[None],
            "min": self.min.min(0)[None],
            "max": self.max.max(0)[None],
        }


TEXT_END = b"\x1e"
"""ASCII record separator between the instructions of one episode."""


@dataclass(frozen=True)
class Index:
    """Every episode of a dataset, in file order. All arrays have one row per episode.

    file: number in Source.files; offset: byte offset of its record; length: steps; labelled: has a
    language instruction; success: passes the schema's filter `success`; texts: its distinct
    instructions, UTF-8, joined by TEXT_END; passed: bool [E, F], for each filter of the schema;
    actions [E, A], states [E, S]: Moments.
    """

    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    labelled: np.ndarray
    success: np.ndarray
    texts: np.ndarray
    passed: np.ndarray
    actions: Moments
    states: Moments

    def select(self, rows: np.ndarray) -> Index:
        """Return the index of the episodes `rows` only."""
        return _by_column(lambda column: column[rows], self)

    def instructions(self, rows: np.ndarray) -> list[str]:
        """Return the distinct instructions of the episodes `rows`, sorted; as in batches, without
        NUL at the end.
        """
        joined = {bytes(text) for text in self.texts[rows]}
        distinct = {text.rstrip(b"\0") for texts in joined for text in texts.split(TEXT_END)}
        return sorted(text.decode("utf-8", "replace") for text in distinct)


def merged(parts: Sequence[Index]) -> Index:
    """Return the index of all files, from parts that have complete files, each in one part."""
    parts = [part for part in parts if len(part.length)] or parts[:1]
    index = joined(parts)
    index = index.select(np.lexsort((index.offset, index.file)))
    assert np.diff([index.file, index.offset]).any(0).all(), "a file is in two parts of the index"
    return index


def joined(parts: Sequence[Any]) -> Any:
    """Return the rows of several Moments, or indices, one after the other."""
    return _by_column(lambda *columns: np.concatenate(columns), *parts)


def _by_column(function: Callable[..., np.ndarray], *parts: Any) -> Any:
    """Return an Index (or Moments) whose columns are `function` of the columns of `parts`."""
    columns = zip(*(vars(part).values() for part in parts))
    return type(parts[0])(
        *(
            _by_column(function, *column) if isinstance(column[0], Moments) else function(*column)
            for column in columns
        )
    )


def moments(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return mean, sqdiff, min, max of [T, D], float64 [D]; zeros and infinities for T = 0."""
    values = values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = values.sum(0) / max(len(values), 1)
        sqdiff = ((values - mean) ** 2).sum(0)
    return mean, sqdiff, values.min(0, initial=np.inf), values.max(0, initial=-np.inf)
