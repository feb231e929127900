"""The shuffle buffer: a table of windows of encoded frames, inside a tf.data graph."""

from __future__ import annotations

import math
from typing import Any

from robomimic_ddp.data.rlds.pipeline.settings import WindowSettings
from robomimic_ddp.data.rlds.tf_import import import_tensorflow


class Store:
    """Created inside a tf.data function: each iterator has a separate store, freed with it.

    A table for each camera, one of instructions, one of numbers, with a row per window.
    """

    def __init__(self, settings: WindowSettings) -> None:
        tf = import_tensorflow()
        fields, shape = settings.fields, settings.shape
        self._shape = shape
        self._states = {key: tuple(size) for key, size in fields.low_dim_shapes.items()}
        self._actions = fields.action_size
        sizes = [shape.frame_stack * math.prod(size) for size in self._states.values()]
        self._split = [*sizes, shape.actions * self._actions, shape.actions]
        self._frames = {key: self._table(tf.string, shape.frame_stack) for key in fields.images}
        self._language = self._table(tf.string, 1)
        self._numbers = self._table(tf.float32, sum(self._split))

    @staticmethod
    def _table(kind: Any, width: int) -> Any:
        tf = import_tensorflow()
        # tf.lookup.experimental.MutableHashTable does not work inside graphs.
        return tf.raw_ops.AnonymousMutableHashTableOfTensors(
            key_dtype=tf.int64, value_dtype=kind, value_shape=[width]
        )

    def put(self, keys: Any, windows: dict[str, Any]) -> list[Any]:
        """Stores `windows` (see `pipeline.windows_of`) under `keys` [N]; returns the operations."""
        tf = import_tensorflow()
        count = tf.shape(keys)[0]
        parts = [windows["states"][key] for key in self._states]
        parts += [windows["actions"], tf.cast(windows["pad_mask"], tf.float32)]
        flat = [tf.reshape(part, [count, size]) for part, size in zip(parts, self._split)]
        stored = [(table, windows["images"][key]) for key, table in self._frames.items()]
        stored.append((self._language, windows["language"][:, None]))
        stored.append((self._numbers, tf.concat(flat, 1)))
        return [
            tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=keys, values=values)
            for table, values in stored
        ]

    def take(self, keys: Any) -> dict[str, Any]:
        """Removes and returns the windows of `keys` [B]."""
        tf = import_tensorflow()
        numbers = self._removed(self._numbers, keys, float("nan"), sum(self._split))
        *states, actions, mask = tf.split(numbers, self._split, 1)
        stack, length = self._shape.frame_stack, self._shape.actions
        return {
            "images": {
                key: self._removed(table, keys, "", stack) for key, table in self._frames.items()
            },
            "states": {
                key: tf.reshape(value, [-1, stack, *size])
                for (key, size), value in zip(self._states.items(), states)
            },
            "actions": tf.reshape(actions, [-1, length, self._actions]),
            "pad_mask": mask > 0,
            "language": self._removed(self._language, keys, "", 1)[:, 0],
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
