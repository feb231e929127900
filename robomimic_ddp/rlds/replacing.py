"""The torch side of `ddp.skip_corrupt`: batches of which nothing could be read are filled, and what
was replaced is told, once for each episode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.tolerant import NOTHING

if TYPE_CHECKING:
    from robomimic_ddp.rlds.dataset import RLDSDataset

MOST_SEARCHED = 10_000
"""Windows that are tried before a rank gives up."""
_MOST_TOLD = 10


def is_empty(batch: dict[str, Any]) -> bool:
    """Whether none of the rows could be read."""
    return int(batch["index"][0]) == NOTHING


def first_readable(windows: Iterable[dict[str, Any]], where: str) -> tuple[int, dict[str, Any]]:
    """The first of `windows`, batches of one row, that could be read, and how many come before it.
    Raises DataError for none.
    """
    for number, window in enumerate(windows):
        if not is_empty(window):
            return number, window
        if number >= MOST_SEARCHED:
            break
    raise DataError(
        f"{where}: none of the next {MOST_SEARCHED} windows can be read, so ddp.skip_corrupt=true "
        "has nothing to put in their place. Copy or prepare the data set again."
    )


def repeated(window: dict[str, Any], rows: int) -> dict[str, Any]:
    """A batch of `rows` times the one row of `window`."""

    def repeat(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: repeat(entry) for key, entry in value.items()}
        if isinstance(value, torch.Tensor):
            return value.repeat_interleave(rows, 0)
        return value * rows

    return repeat(window)


class Report:
    """Says on stderr which episodes a rank's replaced windows belong to; counts all of them."""

    def __init__(self, dataset: RLDSDataset, rank: int) -> None:
        self._dataset, self._rank = dataset, rank
        self._read, self._episodes = 0, set()

    def look(self, damaged: list[int]) -> None:
        """`damaged`: the numbers of all windows replaced so far."""
        new, self._read = damaged[self._read :], len(damaged)
        for window in new:
            episode, step = self._dataset.episode_of(window)
            if episode in self._episodes or len(self._episodes) > _MOST_TOLD:
                continue
            self._episodes.add(episode)
            if len(self._episodes) > _MOST_TOLD:
                self._say("more episodes cannot be read; ddp.json counts their windows at the end")
                continue
            place = self._dataset.describe_episode(episode)
            self._say(f"{place} cannot be read at step {step}; its window is replaced")

    def _say(self, text: str) -> None:
        print(f"warning: ddp.skip_corrupt=true, rank {self._rank}: {text}", file=sys.stderr)
