"""Which episode it was that could not be read: looked for among those that were being read.

A data set of terabytes is not read again to name one record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from robomimic_ddp.errors import DataError
from robomimic_ddp.rlds.records import (
    bad_picture,
    damaged_data,
    episode_parser,
    raw_records,
    step_features_read,
    strange,
)
from robomimic_ddp.rlds.tf_import import import_tensorflow

if TYPE_CHECKING:
    from robomimic_ddp.rlds.dataset import RLDSDataset
    from robomimic_ddp.rlds.plans import PassPlan


def episodes_being_read(dataset: RLDSDataset, plan: PassPlan, taken: int) -> np.ndarray:
    """Rows of the index, int64 [N]: those that `plan` may have been reading, or held, when `taken`
    windows had left.
    """
    block = plan.block_of(taken)
    first = int(plan.pieces.begins[plan.cuts[block]])
    held = np.searchsorted(
        plan.pieces.ends, max(0, min(first, taken) - plan.shuffle.spread), "right"
    )
    last = int(plan.cuts[min(block + 3, plan.blocks)])
    return dataset.rows[np.unique(plan.pieces.episode[held:last])]


def named_error(
    dataset: RLDSDataset, rows: Iterable[int], error: Exception, doing: str
) -> DataError:
    """The DataError for TensorFlow's `error` while `doing` something with the episodes `rows`.

    Reads those again, and the whole data set only where none of them is damaged.
    """
    for row in rows:
        found = _damage_of(dataset, int(row))
        if found is not None:
            return DataError(
                f"reading failed while {doing}.\n{found}\nCopy or prepare that file again, or "
                "train on what is whole with ddp.skip_corrupt=true."
            )
    source = dataset.source
    return damaged_data(error, source.files, doing, source.features, dataset.fields)


def _damage_of(dataset: RLDSDataset, row: int) -> str | None:
    """What is wrong with the record of episode `row`, or with a picture in it."""
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
