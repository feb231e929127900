"""`ddp.skip_corrupt` inside the tf.data graph: replaces a window that cannot be read or decoded by
another of its batch, so that every rank takes the same number of batches of the same size.

A row that fails is replaced by the next readable row of its batch, cyclically. Other rows, the
order of the pass and positions do not change, and the result depends on the batch alone. A batch
without a readable row has `index` -1, and the loader replaces it (`RLDSLoader`).

Rows are tried one by one only if the batch fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

import numpy as np

from robomimic_ddp.config import tree
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.errors import DataError

NOTHING = -1
"""The `index` of a batch without a readable row."""
MOST_SEARCHED = 10_000
"""Windows that a rank tries before it raises."""


def attempt(make: Callable[[], Any], instead: Any) -> Any:
    """TensorFlow: `make()`, or `instead` if one of its operations fails."""
    tf = import_tensorflow()
    once = tf.data.Dataset.from_tensors(0)
    made = once.map(lambda _: make()).ignore_errors().concatenate(once.map(lambda _: instead))
    return made.take(1).get_single_element()


def finished(
    finish: Callable[[dict[str, Any]], dict[str, Any]],
    batch: dict[str, Any],
    note: Callable[[np.ndarray], None],
) -> dict[str, Any]:
    """TensorFlow: `finish(batch)` for a batch of encoded windows, with failing rows replaced. note:
    called with the numbers of the replaced windows, int64 [N].
    """
    tf = import_tensorflow()
    rows = tf.shape(batch["index"], tf.int64)[0]

    def whole(part: dict[str, Any]) -> dict[str, Any]:
        # In the store a window whose record could not be read is NaN.
        actions = tf.debugging.assert_all_finite(part["actions"], "no such window")
        return finish({**part, "actions": actions})

    def one(row: Any) -> tuple[Any, dict[str, Any]]:
        made = whole(tf.nest.map_structure(lambda value: value[row : row + 1], batch))
        return row, tf.nest.map_structure(lambda value: value[0], made)

    def filled(good: Any, made: dict[str, Any]) -> dict[str, Any]:
        count = tf.shape(good, tf.int64)[0]
        place = tf.searchsorted(good, tf.range(rows), out_type=tf.int64) % count
        known = tf.scatter_nd(good[:, None], tf.ones([count], tf.int64), [rows])
        replaced = tf.where(known == 0)[:, 0]
        return noted(tf.nest.map_structure(lambda value: tf.gather(value, place), made), replaced)

    def nothing(_: Any) -> dict[str, Any]:
        def empty(spec: Any) -> Any:
            return tf.zeros(tf.concat([rows[None], np.int64(spec.shape[1:])], 0), spec.dtype)

        made = tf.nest.map_structure(empty, ready.element_spec)
        return noted({**made, "index": tf.fill([rows], np.int64(NOTHING))}, tf.range(rows))

    def noted(made: dict[str, Any], replaced: Any) -> dict[str, Any]:
        def noted(index: np.ndarray) -> np.int64:
            note(index)
            return np.int64(0)

        called = tf.numpy_function(noted, [tf.gather(batch["index"], replaced)], tf.int64)
        with tf.control_dependencies([called]):
            return {**made, "index": tf.identity(made["index"])}

    once = tf.data.Dataset.from_tensors(0)
    ready = once.map(lambda _: whole(batch))
    by_row = tf.data.Dataset.range(rows).map(one).ignore_errors().batch(rows).map(filled)
    tried = ready.ignore_errors().concatenate(by_row).concatenate(once.map(nothing))
    return tried.take(1).get_single_element()


def is_empty(batch: dict[str, Any]) -> bool:
    """Whether no row could be read."""
    return int(batch["index"][0]) == NOTHING


def first_readable(windows: Iterable[dict[str, Any]], where: str) -> tuple[int, dict[str, Any]]:
    """Number and value of the first readable of `windows`, batches of one row. Raises DataError."""
    for number, window in enumerate(windows):
        if not is_empty(window):
            return number, window
        if number >= MOST_SEARCHED:
            break
    raise DataError(
        f"{where}: none of the next {MOST_SEARCHED} windows can be read, so ddp.skip_corrupt=true "
        "has nothing to put in their place. Copy or prepare the dataset again."
    )


def repeated(window: dict[str, Any], rows: int) -> dict[str, Any]:
    """A batch of `rows` copies of the row `window`."""
    tensors = {key: value for key, value in window.items() if key != "language"}
    batch = tree.mapped(lambda value: value.repeat_interleave(rows, 0), tensors)
    return {**batch, "language": window["language"] * rows}
