"""The loader that hosts have, in our own words: stage for stage what DROID's code makes of octo's
and dlimp's pipelines, of which each sample goes through every one.

Whole episodes: everything in the record read, what belongs to the episode repeated for each step,
episodes filtered, brought into one form, normalised, cut into windows. Then single samples:
shuffled while encoded, each camera decoded and resized frame by frame, made ready for augmentation
(none is configured), scaled to float32, and handed over as numpy.
"""

from __future__ import annotations

from typing import Any

from robomimic_ddp.bench.data_set import DataJob, open_dataset
from robomimic_ddp.rlds.actions import action_vectors
from robomimic_ddp.rlds.resampling import plain_resize
from robomimic_ddp.rlds.schema import Fields, flat_features
from robomimic_ddp.rlds.tf_import import import_tensorflow, import_tensorflow_datasets

Tree = dict[str, Any]


def host_samples(job: DataJob, options: Any) -> Any:
    """tf.data of single samples without end, with `options`: {"obs": {key: [frame_stack, ...]},
    "actions": [seq_length, A]}, pictures as float32 from 0 to 1.
    """
    tf = import_tensorflow()
    dataset, threads = open_dataset(job), job.threads
    fields, recipe = dataset.fields, dataset.recipe

    def each(data: Any, stage: Any) -> Any:
        return data.map(stage, num_parallel_calls=threads)

    episodes = each(_episodes(job).enumerate(), _with_metadata_in_each_step)
    episodes = episodes.filter(_succeeded)
    episodes = each(episodes, lambda episode: _in_one_form(episode, fields))
    episodes = each(episodes, lambda episode: _normalised(episode, recipe.scale, recipe.offset))
    episodes = episodes.repeat().filter(_is_labelled)
    episodes = each(episodes, _with_padding_masks)
    windows = each(episodes, lambda episode: _windows(episode, job.frame_stack, job.seq_length))
    samples = windows.interleave(
        tf.data.Dataset.from_tensor_slices, cycle_length=threads, num_parallel_calls=threads
    )
    samples = samples.shuffle(job.buffer)
    samples = each(samples, lambda sample: _in_each_frame(sample, lambda obs: _decoded(obs, job)))
    samples = each(samples, lambda sample: _in_each_frame(sample, _augmented))
    samples = each(samples, lambda sample: _as_host_takes_it(sample, job, fields))
    return samples.with_options(options)


def _episodes(job: DataJob) -> Any:
    """tf.data of whole records, read by tensorflow-datasets: {"steps": {feature: [T, ...]}, ...}"""
    tfds = import_tensorflow_datasets()
    read = tfds.ReadConfig(
        skip_prefetch=True,
        num_parallel_calls_for_interleave_files=job.threads,
        interleave_cycle_length=job.threads,
    )
    return tfds.builder_from_directory(str(job.path)).as_dataset(
        "train",
        shuffle_files=True,
        decoders={"steps": tfds.decode.SkipDecoding()},
        read_config=read,
    )


def _with_metadata_in_each_step(number: Any, episode: Tree) -> Tree:
    tf = import_tensorflow()
    steps = dict(episode.pop("steps"))
    length = tf.shape(steps["is_first"])[0]
    repeated = tf.nest.map_structure(lambda value: tf.repeat(value, length), episode)
    places = {"length": tf.fill([length], length), "episode": tf.repeat(number, length)}
    return {**steps, "of_episode": repeated, **places, "step": tf.range(length)}


def _succeeded(episode: Tree) -> Any:
    path = episode["of_episode"]["episode_metadata"]["file_path"][0]
    return import_tensorflow().strings.regex_full_match(path, ".*/success/.*")


def _in_one_form(episode: Tree, fields: Fields) -> Tree:
    tf = import_tensorflow()
    steps = flat_features(episode)
    actions = action_vectors(steps, fields.actions)
    length = tf.shape(actions)[0]
    states = [tf.cast(steps[part.source], tf.float32) for part in fields.low_dim.values()]
    pictures = {key: steps[place] for key, place in fields.images.items()}
    absolute = tf.ones([actions.shape[1]], tf.bool)
    return {
        "obs": {**pictures, "states": tf.concat(states, 1), "step": tf.range(length)},
        "task": {"language": steps[fields.language]},
        "actions": actions,
        "dataset": tf.repeat("bench", length),
        "absolute": tf.tile(absolute[None], [length, 1]),
    }


def _normalised(episode: Tree, scale: Any, offset: Any) -> Tree:
    tf = import_tensorflow()
    actions = tf.clip_by_value((episode["actions"] - offset) / scale, -1, 1)
    return {**episode, "actions": tf.where(episode["absolute"], actions, episode["actions"])}


def _is_labelled(episode: Tree) -> Any:
    return import_tensorflow().reduce_any(episode["task"]["language"] != "")


def _with_padding_masks(episode: Tree) -> Tree:
    """Beside each entry, in which steps it is there."""
    tf = import_tensorflow()

    def is_there(value: Any) -> Any:
        if value.dtype == tf.string:
            return tf.strings.length(value) > 0
        return tf.ones([tf.shape(value)[0]], tf.bool)

    masked = {
        name: {**episode[name], "there": {key: is_there(v) for key, v in episode[name].items()}}
        for name in ("obs", "task")
    }
    return {**episode, **masked}


def _windows(episode: Tree, frame_stack: int, seq_length: int) -> Tree:
    """Everything of every step with its past, actions with their future, edges repeated."""
    tf = import_tensorflow()
    length = tf.shape(episode["actions"])[0]
    step, last = tf.range(length)[:, None], length - 1
    seen = step + tf.range(1 - frame_stack, 1)
    acted = step + tf.range(1 - frame_stack, seq_length)
    kept = tf.maximum(seen, 0)
    obs = tf.nest.map_structure(lambda value: tf.gather(value, kept), episode["obs"])
    actions = tf.gather(episode["actions"], tf.clip_by_value(acted, 0, last))
    still = tf.where(episode["absolute"][:, None], actions, tf.zeros_like(actions))
    actions = tf.where((acted > last)[:, :, None], still, actions)
    return {**episode, "obs": {**obs, "pad_mask": seen >= 0}, "actions": actions}


def _in_each_frame(sample: Tree, stage: Any) -> Tree:
    """`stage` of the observations of each frame of the window, and of the task."""
    tf = import_tensorflow()
    obs = sample["obs"]
    flat = [tf.unstack(value) for value in tf.nest.flatten(obs)]
    frames = [stage(tf.nest.pack_sequence_as(obs, values)) for values in zip(*flat)]
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *frames)
    return {**sample, "obs": stacked, "task": stage(dict(sample["task"]))}


def _decoded(obs: Tree, job: DataJob) -> Tree:
    """The host's filter is applied whatever the stored size."""
    tf = import_tensorflow()

    def decoded(value: Any) -> Any:
        picture = tf.io.decode_image(value, expand_animations=False)
        return plain_resize(picture, job.target, job.filter)

    def missing() -> Any:
        return plain_resize(tf.zeros([*job.target, 3], tf.uint8), job.target, job.filter)

    found = dict(obs)
    for key in obs:
        if key.startswith("camera/"):
            there = tf.strings.length(obs[key]) > 0
            found[key] = tf.cond(there, lambda key=key: decoded(obs[key]), missing)
    return found


def _augmented(obs: Tree) -> Tree:
    """No augmentation is configured; its stage is there, and draws its seed."""
    tf = import_tensorflow()
    tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
    return obs


def _as_host_takes_it(sample: Tree, job: DataJob, fields: Fields) -> Tree:
    tf = import_tensorflow()
    obs, taken, begin = sample["obs"], {}, 0
    for key in fields.images:
        picture = tf.ensure_shape(obs[key], [job.frame_stack, *job.target, 3])
        taken[key] = tf.cast(picture, tf.float32) / 255.0
    for key, part in fields.low_dim.items():
        taken[key] = obs["states"][:, begin : begin + part.size]
        begin += part.size
    taken["language"], taken["pad_mask"] = sample["task"]["language"], obs["pad_mask"][:, None]
    return {"obs": taken, "actions": sample["actions"][job.frame_stack - 1 :]}
