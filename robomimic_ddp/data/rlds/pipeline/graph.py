"""The tf.data graph: records -> windows of encoded frames in a store -> batches, in the planned
order, decoded and normalised.

The store (`shuffle_buffer`) is the shuffle buffer. `read_plan.PassPlan` plans the order in which
windows leave it, so any position can be reached directly. Frames stay encoded until their batch is
made, so none is decoded that is not delivered. Python runs once per block of thousands of windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.index.records import raw_records
from robomimic_ddp.data.rlds.order.mixture_quota import Quotas
from robomimic_ddp.data.rlds.order.read_plan import PassPlan
from robomimic_ddp.data.rlds.order.windows import picked_windows, window_indices
from robomimic_ddp.data.rlds.pipeline.images import decode
from robomimic_ddp.data.rlds.pipeline.settings import (
    PREFETCHED_BATCHES,
    Batching,
    WindowSettings,
)
from robomimic_ddp.data.rlds.pipeline.shuffle_buffer import Store
from robomimic_ddp.data.rlds.schema.actions import action_vectors, part_values
from robomimic_ddp.data.rlds.tf_import import import_tensorflow, traced_as_written

READERS = 8
"""Most records that are read at once."""
ENDLESS = 2**62
"""More parts than any run has."""


class FrameCounters:
    """Camera frames counted inside the graph: `decoded` one by one, `batched` with their batch."""

    def __init__(self) -> None:
        tf = import_tensorflow()
        with tf.device("CPU:0"):
            self.decoded = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.batched = tf.Variable(0, dtype=tf.int64, trainable=False)


def windows_of(
    settings: WindowSettings, episode: dict[str, Any], record: Any, numbers: Any
) -> dict:
    """TensorFlow: an episode's tensors [T, ...] and its row of Block.records -> its windows
    `numbers` [N, ...], encoded.
    """
    tf = import_tensorflow()
    taken, count, pick = record[2], record[3], record[4]
    shape, fields = settings.shape, settings.fields
    actions = action_vectors(episode, fields.actions)
    length = tf.shape(actions, out_type=tf.int64)[0]
    window = picked_windows(numbers, count, taken, pick)
    seen_step, acted_step, inside = window_indices(window + shape.first, length, shape, tf)
    states = {
        key: tf.reshape(part_values(episode, part), [-1, *fields.low_dim_shapes[key]])
        for key, part in fields.low_dim.items()
    }
    language = tf.fill(tf.shape(window), "")
    if fields.language:
        language = tf.gather(episode[fields.language], seen_step[:, -1])
    return {
        "images": {
            key: tf.gather(episode[place], seen_step) for key, place in fields.images.items()
        },
        "states": {key: tf.gather(values, seen_step) for key, values in states.items()},
        "actions": tf.gather(actions, acted_step),
        "pad_mask": inside,
        "language": language,
    }


def finish(
    settings: WindowSettings, counters: FrameCounters, batch: dict[str, Any]
) -> dict[str, Any]:
    """TensorFlow: a batch of encoded windows -> the delivered batch (see `RLDSLoader`)."""
    tf = import_tensorflow()
    size, frames = settings.size, settings.shape.frame_stack
    obs, pictures = dict(batch["states"]), tf.constant(0, tf.int64)
    for key, encoded in batch["images"].items():
        decoded = decode(tf.reshape(encoded, [-1]), settings.stored[key], size, counters.decoded)
        obs[key] = tf.reshape(decoded, [-1, frames, size.height, size.width, 3])
        pictures += tf.size(encoded, out_type=tf.int64)
    actions = (batch["actions"] - settings.offset) / settings.scale
    actions = tf.clip_by_value(actions, -settings.limit, settings.limit)
    with tf.control_dependencies([obs[key] for key in batch["images"]]):
        counted = counters.batched.assign_add(pictures)
    with tf.control_dependencies([counted]):
        index = tf.identity(batch["index"])
    return {
        "obs": obs,
        "actions": actions,
        "pad_mask": batch["pad_mask"],
        "language": batch["language"],
        "index": index,
    }


@traced_as_written
def build(
    settings: WindowSettings,
    plan_of: Callable[[int], PassPlan],
    parts: int | None,
    batching: Batching,
    counters: FrameCounters,
    start: tuple[int, int] = (0, 0),
    groups: Callable[[int, int], np.ndarray] | None = None,
) -> Any:
    """tf.data of batches over the plans of parts 0, 1, ... (`parts`: their number; None: endless).

    Batches may extend over the ends of parts; the last one may be short. start: a part, and how
    many windows of it were delivered; of earlier records only those with waiting windows are read.

    `groups(first, count)`: codes of the batches (see `Quotas`) that the segment's `count` windows
    from number `first` on make, in place of `batch_size`.
    """
    tf = import_tensorflow()
    blocks = _blocks(plan_of, start, parts or ENDLESS, groups)
    batches = tf.data.Dataset.range(1).flat_map(
        lambda _: _batches(settings, blocks, batching, counters, groups is not None)
    )
    batches = batches.prefetch(PREFETCHED_BATCHES)
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.threading.private_threadpool_size = batching.threads
    options.threading.max_intra_op_parallelism = 1
    return batches.with_options(options)


def _blocks(
    plan_of: Callable[[int], PassPlan],
    start: tuple[int, int],
    parts: int,
    groups: Callable[[int, int], np.ndarray] | None,
) -> Any:
    """tf.data of Blocks, planned one part ahead; `leaving` with the group's code."""
    tf = import_tensorflow()
    first, taken = start

    # numpy_function, not from_generator, which is finalised after Python has ended.
    def blocks_of(part: int) -> tuple[np.int64, np.int64]:
        plan = plan_of(int(part))
        begin = plan.block_of(taken) if part == first and taken else 0
        return np.int64(begin), np.int64(plan.blocks)

    def block(part: int, number: int) -> tuple[np.ndarray, ...]:
        plan = plan_of(int(part))
        here = part == first and taken and number == plan.block_of(taken)
        made = plan.block(int(number), taken if here else 0)
        count = len(made.leaving)
        code = groups(int(made.first), count) if groups else np.zeros(count, np.int64)
        *most, leaving, left, _ = made.arrays()
        return (*most, np.append(leaving, code[:, None], 1), left)

    def of_part(part: Any) -> Any:
        begin, end = tf.numpy_function(blocks_of, [part], [tf.int64] * 2)
        return tf.data.Dataset.range(begin, end).map(lambda number: of_block(part, number))

    def of_block(part: Any, number: Any) -> tuple:
        arrays = tf.numpy_function(block, [part, number], [tf.int64] * 6)
        shapes = ([None, 6], [None], [None], [None], [None, 3], [None])
        return tuple(tf.ensure_shape(array, shape) for array, shape in zip(arrays, shapes))

    return tf.data.Dataset.range(first, parts).flat_map(of_part).prefetch(1)


def _batches(
    settings: WindowSettings,
    blocks: Any,
    batching: Batching,
    counters: FrameCounters,
    grouped: bool,
) -> Any:
    """tf.data of finished batches, with a new store."""
    tf = import_tensorflow()
    names = tf.constant(settings.files)
    store = Store(settings)

    def rows(records, numbers, keys, stored, leaving, left) -> Any:
        def row(p: Any) -> tuple:
            part, out = slice(stored[p], stored[p + 1]), slice(left[p], left[p + 1])
            return records[p], numbers[part], keys[part], leaving[out]

        return tf.data.Dataset.range(tf.shape(records, tf.int64)[0]).map(row)

    def read(record: Any, numbers: Any, keys: Any, leaving: Any) -> Any:
        raw = raw_records(names[record[0]], record[1]).take(1).get_single_element()
        windows = windows_of(settings, settings.parse(raw), record, numbers)
        with tf.control_dependencies(store.put(keys, windows)):
            return tf.identity(leaving)

    def batch_of(leaving: Any) -> dict[str, Any]:
        batch = {**store.take(leaving[:, 0]), "index": leaving[:, 1]}
        return finish(settings, counters, batch)

    threads = min(batching.threads, READERS)
    records = blocks.flat_map(rows).map(read, num_parallel_calls=threads, deterministic=True)
    leaving = records.flat_map(tf.data.Dataset.from_tensor_slices)
    if grouped:
        leaving = leaving.group_by_window(
            key_func=lambda window: window[2],
            reduce_func=lambda code, windows: windows.batch(Quotas.group_size(code)),
            window_size_func=Quotas.group_size,
        )
    else:
        leaving = leaving.batch(batching.batch_size)
    return leaving.map(batch_of, num_parallel_calls=batching.threads, deterministic=True)
