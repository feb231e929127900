"""The shuffle buffer: windows of encoded frames under a key, in memory, inside a tf.data graph."""

from __future__ import annotations

from typing import Any

from robomimic_ddp.rlds.plans import Recipe
from robomimic_ddp.rlds.tf_import import import_tensorflow


class Store:
    """Made inside a tf.data function: every iterator has its own, freed with it.

    Two tables, one of texts (pictures and instruction) and one of numbers (states, actions, mask),
    with one row per window.
    """

    def __init__(self, recipe: Recipe) -> None:
        tf = import_tensorflow()
        fields, shape = recipe.fields, recipe.shape
        self._shape = shape
        self._images = tuple(fields.images)
        self._states = {key: tuple(size) for key, size in fields.low_dim_shapes.items()}
        self._actions = fields.action_size
        sizes = [shape.frame_stack * _product(size) for size in self._states.values()]
        self._split = [*sizes, shape.actions * self._actions, shape.actions]
        self._texts = self._table(tf.string, len(self._images) * shape.frame_stack + 1)
        self._numbers = self._table(tf.float32, sum(self._split))

    @staticmethod
    def _table(kind: Any, width: int) -> Any:
        tf = import_tensorflow()
        # tf.lookup.experimental.MutableHashTable makes this op, but only outside of graphs.
        return tf.raw_ops.AnonymousMutableHashTableOfTensors(
            key_dtype=tf.int64, value_dtype=kind, value_shape=[width]
        )

    def put(self, keys: Any, windows: dict[str, Any]) -> list[Any]:
        """Stores `windows` (see `pipeline.windows_of`) under `keys` [N]; returns the operations."""
        tf = import_tensorflow()
        count = tf.shape(keys)[0]
        pictures = [windows["images"][key] for key in self._images]
        texts = tf.concat([*pictures, windows["language"][:, None]], 1)
        parts = [windows["states"][key] for key in self._states]
        parts += [windows["actions"], tf.cast(windows["pad_mask"], tf.float32)]
        flat = [tf.reshape(part, [count, size]) for part, size in zip(parts, self._split)]
        insert = tf.raw_ops.LookupTableInsertV2
        return [
            insert(table_handle=self._texts, keys=keys, values=texts),
            insert(table_handle=self._numbers, keys=keys, values=tf.concat(flat, 1)),
        ]

    def take(self, keys: Any) -> dict[str, Any]:
        """The windows of `keys` [B], which are removed."""
        tf = import_tensorflow()
        texts = self._removed(
            self._texts, keys, "", len(self._images) * self._shape.frame_stack + 1
        )
        numbers = self._removed(self._numbers, keys, float("nan"), sum(self._split))
        *states, actions, mask = tf.split(numbers, self._split, 1)
        stack, length = self._shape.frame_stack, self._shape.actions
        return {
            "images": {
                key: texts[:, number * stack : (number + 1) * stack]
                for number, key in enumerate(self._images)
            },
            "states": {
                key: tf.reshape(value, [-1, stack, *size])
                for (key, size), value in zip(self._states.items(), states)
            },
            "actions": tf.reshape(actions, [-1, length, self._actions]),
            "pad_mask": mask > 0,
            "language": texts[:, -1],
        }

    @staticmethod
    def _removed(table: Any, keys: Any, missing: Any, width: int) -> Any:
        tf = import_tensorflow()
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=table, keys=keys, default_value=tf.fill([width], missing)
        )
        with tf.control_dependencies([found]):
            removed = tf.raw_ops.LookupTableRemoveV2(table_handle=table, keys=keys)
        with tf.control_dependencies([removed]):
            return tf.identity(found)


def _product(size: tuple[int, ...]) -> int:
    total = 1
    for number in size:
        total *= number
    return total
