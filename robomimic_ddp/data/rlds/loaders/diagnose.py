"""Finds the episode that could not be read, among those that were being read: a large dataset is
not read again for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.index.records import fault_of, read_record, step_features_read
from robomimic_ddp.data.rlds.order.read_plan import PassPlan
from robomimic_ddp.data.rlds.pipeline.images import RecordError
from robomimic_ddp.errors import DataError

SEARCH_SECONDS = 20.0
"""Time limit of the search: other ranks wait."""
_LEAVING_SOON = 512
_PREPARE = (
    "`robomimic-ddp prepare-data --skip-corrupt` writes the dataset without episodes that cannot "
    "be read or decoded"
)


def episodes_being_read(dataset: RLDSDataset, plan: PassPlan, taken: int) -> np.ndarray:
    """Return rows of the index, int64 [N], that `plan` was reading or had in its buffer after
    `taken` windows; those whose windows leave next come first.
    """
    block = plan.block_of(taken)
    begin = int(plan.pieces.begins[plan.cuts[block]])
    oldest = max(0, min(begin, taken) - plan.shuffle.spread)
    first = np.searchsorted(plan.pieces.ends, oldest, "right")
    last = int(plan.cuts[min(block + 3, plan.blocks)])
    leaving = plan.block(block, taken).leaving[:_LEAVING_SOON, 1]
    soon = [dataset.episode_of(window)[0] for window in leaving.tolist()]
    around = dataset.rows[np.unique(plan.pieces.episode[first:last])].tolist()
    return np.array(list(dict.fromkeys([*soon, *around])), np.int64)


def named_error(
    dataset: RLDSDataset, rows: Iterable[int], error: Exception, doing: str
) -> DataError:
    """Return the DataError for the reader's `error` while `doing` something with the episodes
    `rows`. Reads these again, in limited time.
    """
    deadline = time.monotonic() + SEARCH_SECONDS
    damage = None
    for row in rows:
        if damage is None and time.monotonic() < deadline:
            damage = _damage_of(dataset, int(row))
    return DataError(
        f"reading failed while {doing}.\n"
        + (
            damage
            or f"{type(error).__name__}: {_first_line(error)}\nThe episodes that were read again "
            "are complete. See whether the disk can be read; `robomimic-ddp inspect-data --config "
            "FILE --cache NEW_FOLDER` reads every record again and names a damaged one; "
            f"{_PREPARE}."
        )
    )


def _damage_of(dataset: RLDSDataset, row: int) -> str | None:
    """Return what is wrong with the record of episode `row` or an image in it, and what to do; None
    if it can be read.
    """
    file = dataset.source.files[dataset.index.file[row]]
    where = dataset.describe_episode(row)
    try:
        serialized = read_record(file, int(dataset.index.offset[row]))
    except RecordError as error:
        return (
            f"{where}: its record is damaged, cut off or missing ({_first_line(error)}). It could "
            "be read when the index was built. Copy that file again; or delete the dataset's index "
            "from train.data_cache_dir (and from the folder `index` of a prepared set) and set "
            "ddp.skip_corrupt=true: the index is then built again, without this episode."
        )
    reason = fault_of(serialized, dataset.source.features, step_features_read(dataset.fields, True))
    return reason and (
        f"{where}{reason}. The index is built without reading images. Copy or prepare that file "
        f"again; {_PREPARE}."
    )


def _first_line(error: Any) -> str:
    return str(error).splitlines()[0]
