"""The tf.data graph: pieces of episodes -> windows of encoded frames -> shuffle -> batches, decoded
and normalised.

Everything before the batch handles raw records and encoded frames only; a frame is decoded once its
batch is being made, so nothing is decoded that is not delivered. No Python runs per sample: once
per pass for the list of pieces.
"""

from __future__ import annotations

from typing import Any, Callable

from robomimic_ddp.rlds.actions import action_vectors
from robomimic_ddp.rlds.pictures import decode
from robomimic_ddp.rlds.plans import PassPlan, Reading, Recipe
from robomimic_ddp.rlds.records import raw_records
from robomimic_ddp.rlds.tf_import import import_tensorflow
from robomimic_ddp.rlds.windows import picked_windows

OPEN_EPISODES = 8
"""Episodes read in turns, so that neighbours in the stream come from several; fixed, as the order
depends on it.
"""
ENDLESS = 2**62
"""As many passes as no run gets through."""


class FrameCounters:
    """Camera frames counted inside the graph: `decoded` one by one, `batched` when their batch is
    complete.
    """

    def __init__(self) -> None:
        tf = import_tensorflow()
        with tf.device("CPU:0"):
            self.decoded = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.batched = tf.Variable(0, dtype=tf.int64, trainable=False)


def windows_of(recipe: Recipe, episode: dict[str, Any], piece: tuple) -> dict[str, Any]:
    """TensorFlow: an episode's tensors [T, ...] and one row of a PassPlan -> its windows [N, ...],
    still encoded.
    """
    tf = import_tensorflow()
    start, stop, taken, count, pick, base = piece
    shape, fields = recipe.shape, recipe.fields
    actions = action_vectors(episode, fields.actions)
    length = tf.shape(actions, out_type=tf.int64)[0]
    window = picked_windows(tf.range(start, stop), count, taken, pick)
    first_seen = (window + shape.first - (shape.frame_stack - 1))[:, None]
    acted = first_seen + tf.range(shape.actions, dtype=tf.int64)[None]
    seen_step = tf.clip_by_value(acted[:, : shape.frame_stack], 0, length - 1)
    acted_step = tf.clip_by_value(acted, 0, length - 1)
    states = {
        key: tf.reshape(tf.cast(episode[place], tf.float32), [-1, *fields.low_dim_shapes[key]])
        for key, place in fields.low_dim.items()
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
        "pad_mask": (acted >= 0) & (acted < length),
        "language": language,
        "index": base + window,
    }


def finish(recipe: Recipe, counters: FrameCounters, batch: dict[str, Any]) -> dict[str, Any]:
    """TensorFlow: a batch of encoded windows -> what is delivered (`loader` names the shapes)."""
    tf = import_tensorflow()
    size, frames = recipe.size, recipe.shape.frame_stack
    obs, pictures = dict(batch["states"]), tf.constant(0, tf.int64)
    for key, encoded in batch["images"].items():
        decoded = decode(tf.reshape(encoded, [-1]), recipe.stored[key], size, counters.decoded)
        obs[key] = tf.reshape(decoded, [-1, frames, size.height, size.width, 3])
        pictures += tf.size(encoded, out_type=tf.int64)
    actions = (batch["actions"] - recipe.offset) / recipe.scale
    actions = tf.clip_by_value(actions, -recipe.limit, recipe.limit)
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


def build(
    recipe: Recipe,
    plan_of: Callable[[int], PassPlan],
    passes: int | None,
    reading: Reading,
    counters: FrameCounters,
    first_pass: int = 0,
    passed_over: int = 0,
) -> Any:
    """tf.data of batches over the plans of `first_pass` and the passes after it (`passes` of them;
    None: without end), less the first `passed_over` windows, which are read but not decoded.

    One row of windows, cut every `batch_size` across the ends of passes; a pass's windows are
    shuffled among themselves. The short batch at the end of the last pass is kept.
    """
    tf = import_tensorflow()
    last_pass = first_pass + passes if passes else ENDLESS
    windows = _windows(recipe, plan_of, (first_pass, last_pass), reading).skip(passed_over)
    batches = windows.batch(reading.batch_size).map(
        lambda batch: finish(recipe, counters, batch),
        num_parallel_calls=reading.threads,
        deterministic=True,
    )
    if reading.prefetch:
        batches = batches.prefetch(reading.prefetch)
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.threading.private_threadpool_size = reading.threads
    options.threading.max_intra_op_parallelism = 1
    return batches.with_options(options)


def _windows(
    recipe: Recipe, plan_of: Callable[[int], PassPlan], passes: tuple[int, int], reading: Reading
) -> Any:
    """tf.data of single windows, still encoded, pass after pass."""
    tf = import_tensorflow()
    names = tf.constant(recipe.files)

    def plan(number: Any) -> Any:
        # Python once per pass. Not from_generator, whose generators are finalised at exit, when
        # Python has already ended.
        *rows, seed = tf.numpy_function(
            lambda n: plan_of(int(n)).arrays(), [number], [tf.int64] * 9
        )
        return (*(tf.ensure_shape(row, [None]) for row in rows), tf.ensure_shape(seed, []))

    def read_piece(file: Any, offset: Any, *piece: Any) -> Any:
        episode = raw_records(names[file], offset).take(1).map(recipe.parse)
        return episode.flat_map(
            lambda tensors: tf.data.Dataset.from_tensor_slices(windows_of(recipe, tensors, piece))
        )

    def read_pass(*plan: Any) -> Any:
        windows = tf.data.Dataset.from_tensor_slices(plan[:-1]).interleave(
            read_piece,
            cycle_length=OPEN_EPISODES,
            block_length=1,
            num_parallel_calls=min(reading.threads, OPEN_EPISODES),
            deterministic=True,
        )
        if reading.shuffle_buffer > 1:
            windows = windows.shuffle(
                reading.shuffle_buffer, seed=plan[-1], reshuffle_each_iteration=False
            )
        return windows

    return tf.data.Dataset.range(*passes).map(plan).flat_map(read_pass)
