"""Finds the episode that could not be read, among those that were being read: a large dataset is
not read again for it. With `ddp.skip_corrupt` each is reported once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.index.records import (
    bad_picture,
    damaged_data,
    episode_parser,
    raw_records,
    step_features_read,
    strange,
)
from robomimic_ddp.data.rlds.order.read_plan import PassPlan
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.errors import DataError

SEARCH_SECONDS = 20.0
"""Time limit of the search."""
SEARCHED_BYTES = 2**32
"""Size up to which the whole dataset is searched."""
_LEAVING_SOON = 512
_MOST_REPORTED = 10


def episodes_being_read(dataset: RLDSDataset, plan: PassPlan, taken: int) -> np.ndarray:
    """Rows of the index, int64 [N], that `plan` was reading or had in its buffer after `taken`
    windows; those whose windows leave next come first.
    """
    block = plan.block_of(taken)
    first = int(plan.pieces.begins[plan.cuts[block]])
    held = np.searchsorted(
        plan.pieces.ends, max(0, min(first, taken) - plan.shuffle.spread), "right"
    )
    last = int(plan.cuts[min(block + 3, plan.blocks)])
    leaving = plan.block(block, taken).leaving[:_LEAVING_SOON, 1]
    soon = [dataset.episode_of(window)[0] for window in leaving.tolist()]
    around = dataset.rows[np.unique(plan.pieces.episode[held:last])].tolist()
    return np.array(list(dict.fromkeys([*soon, *around])), np.int64)


def named_error(
    dataset: RLDSDataset, rows: Iterable[int], error: Exception, doing: str
) -> DataError:
    """The DataError for TensorFlow's `error` while `doing` something with the episodes `rows`.
    Reads these again, then all of a small dataset, in limited time, since other ranks wait.
    """
    source, deadline = dataset.source, time.monotonic() + SEARCH_SECONDS
    for row in rows:
        if time.monotonic() > deadline:
            break
        found = _damage_of(dataset, int(row))
        if found is not None:
            return DataError(
                f"reading failed while {doing}.\n{found}\nCopy or prepare that file again, or "
                "train on what is whole with ddp.skip_corrupt=true."
            )
    if sum(source.sizes) > SEARCHED_BYTES:
        return DataError(
            f"reading failed while {doing}.\n{type(error).__name__}: {_first_line(error)}\n"
            "The episodes that were looked at again are whole, and the dataset is too large to be "
            "read for the damaged one now. See whether the disk can be read; `robomimic-ddp "
            "inspect-data --config FILE --cache NEW_FOLDER` reads every record and names a damaged "
            "one; or train on what is whole with ddp.skip_corrupt=true."
        )
    return damaged_data(error, source.files, doing, source.features, dataset.fields)


def _damage_of(dataset: RLDSDataset, row: int) -> str | None:
    """What is wrong with the record of episode `row`, or an image in it; else None."""
    tf = import_tensorflow()
    fields, features = dataset.fields, dataset.source.features
    file = dataset.source.files[dataset.index.file[row]]
    where = dataset.describe_episode(row)
    try:
        raw = raw_records(tf.constant(str(file)), tf.constant(dataset.index.offset[row], tf.int64))
        serialized = raw.take(1).get_single_element()
    except (tf.errors.OpError, ValueError) as error:
        return f"{where}: its record is damaged, cut off or missing ({_first_line(error)})"
    names = step_features_read(fields, True)
    parse = episode_parser(features, names)
    found = strange(serialized, parse, names)
    if found is not None:
        return f"{where}: {found}"
    episode = parse(serialized)
    pictures = {place: episode[place] for place in sorted(set(fields.images.values()))}
    found = bad_picture(pictures, features)
    return found and f"{where}, {found}"


def _first_line(error: Any) -> str:
    return str(error).splitlines()[0]


class Report:
    """Reports on stderr the episodes of a rank's replaced windows, and counts the windows."""

    def __init__(self, dataset: RLDSDataset, rank: int) -> None:
        self._dataset, self._rank = dataset, rank
        self._read, self._episodes = 0, set()

    def look(self, damaged: list[int]) -> None:
        """`damaged`: the numbers of all windows replaced so far."""
        new, self._read = damaged[self._read :], len(damaged)
        for window in new:
            episode, step = self._dataset.episode_of(window)
            if episode in self._episodes or len(self._episodes) > _MOST_REPORTED:
                continue
            self._episodes.add(episode)
            if len(self._episodes) > _MOST_REPORTED:
                self._say("more episodes cannot be read; ddp.json counts their windows at the end")
                continue
            place = self._dataset.describe_episode(episode)
            self._say(f"{place} cannot be read at step {step}; its window is replaced")

    def _say(self, text: str) -> None:
        print(f"warning: ddp.skip_corrupt=true, rank {self._rank}: {text}", file=sys.stderr)
