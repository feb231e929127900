"""The hosts' loader, written again: stage for stage DROID's use of octo's and dlimp's pipelines.

Stages of whole episodes: read the whole record, repeat values of the episode for each step, filter,
standardise, normalise, chunk into windows. Stages of single samples: shuffle while encoded, decode
and resize each camera frame by frame, prepare for augmentation (none is configured), scale to
float32.
"""

from __future__ import annotations

from typing import Any

from robomimic_ddp.data.rlds.schema.features import flat_features
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from scripts.bench.loading.data_set import DataJob, open_dataset

Tree = dict[str, Any]


def plain_resize(frames: Any, target: tuple[int, int]) -> Any:
    """TensorFlow: uint8 [N, h, w, 3] or [h, w, 3] -> the same of size `target`, as hosts do."""
    tf = import_tensorflow()
    resized = tf.image.resize(frames, target, "lanczos3", antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)


def rotation_rows(tf: Any, angles: Any) -> Any:
    """DROID's six numbers of a rotation: rows 0 and 1 of Rz @ Ry @ Rx, of angles [T, 3]."""
    (a, b, c), (d, e, f) = (tf.unstack(turn(angles), axis=-1) for turn in (tf.sin, tf.cos))
    first = [f * e, f * b * a - c * d, f * b * d + c * a]
    return tf.stack([*first, c * e, c * b * a + f * d, c * b * d - f * a], -1)


class HostPipeline:
    """The stages over the dataset of `job`."""

    def __init__(self, job: DataJob) -> None:
        self.job, self.tf, self.settings = job, import_tensorflow(), open_dataset(job).settings
        self.fields = self.settings.fields

    def samples(self) -> Any:
        """Endless tf.data of single samples: {"obs": {key: [frame_stack, ...]}, "actions":
        [seq_length, A]}, images as float32 from 0 to 1.
        """
        threads = self.job.threads

        def each(data: Any, *stages: Any) -> Any:
            for stage in stages:
                data = data.map(stage, num_parallel_calls=threads)
            return data

        episodes = each(self._episodes().enumerate(), self._with_metadata_in_each_step)
        episodes = each(episodes.filter(self._succeeded), self._in_one_form, self._normalized)
        episodes = episodes.repeat().filter(self._is_labelled)
        windows = each(episodes, self._with_padding_masks, self._windows)
        samples = windows.interleave(
            self.tf.data.Dataset.from_tensor_slices,
            cycle_length=threads,
            num_parallel_calls=threads,
        ).shuffle(self.job.buffer)
        return each(
            samples,
            lambda sample: self._in_each_frame(sample, self._decoded),
            lambda sample: self._in_each_frame(sample, self._augmented),
            self._as_host_takes_it,
        )

    def _episodes(self) -> Any:
        """tf.data of whole records by tensorflow-datasets: {"steps": {feature: [T, ...]}, ...}."""
        import tensorflow_datasets as tfds

        threads = self.job.threads
        read = tfds.ReadConfig(
            skip_prefetch=True,
            num_parallel_calls_for_interleave_files=threads,
            interleave_cycle_length=threads,
        )
        builder = tfds.builder_from_directory(str(self.job.path))
        as_stored = {"steps": tfds.decode.SkipDecoding()}
        return builder.as_dataset("train", shuffle_files=True, decoders=as_stored, read_config=read)

    def _with_metadata_in_each_step(self, number: Any, episode: Tree) -> Tree:
        tf, steps = self.tf, dict(episode.pop("steps"))
        length = tf.shape(steps["is_first"])[0]
        repeated = tf.nest.map_structure(lambda value: tf.repeat(value, length), episode)
        places = {"length": tf.fill([length], length), "episode": tf.repeat(number, length)}
        return {**steps, "of_episode": repeated, **places, "step": tf.range(length)}

    def _succeeded(self, episode: Tree) -> Any:
        path = episode["of_episode"]["episode_metadata"]["file_path"][0]
        return self.tf.strings.regex_full_match(path, ".*/success/.*")

    def _in_one_form(self, episode: Tree) -> Tree:
        tf, fields, steps = self.tf, self.fields, flat_features(episode)
        columns = [(p, steps[p.source][:, p.start : p.stop]) for p in fields.actions.values()]
        parts = [rotation_rows(tf, values) if p.rotation else values for p, values in columns]
        actions = tf.concat([tf.cast(part, tf.float32) for part in parts], -1)
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

    def _normalized(self, episode: Tree) -> Tree:
        tf, settings, actions = self.tf, self.settings, episode["actions"]
        normalized = tf.clip_by_value((actions - settings.offset) / settings.scale, -1, 1)
        return {**episode, "actions": tf.where(episode["absolute"], normalized, actions)}

    def _is_labelled(self, episode: Tree) -> Any:
        return self.tf.reduce_any(episode["task"]["language"] != "")

    def _with_padding_masks(self, episode: Tree) -> Tree:
        """Adds to each entry a mask of the steps that have it."""
        tf = self.tf

        def is_there(value: Any) -> Any:
            if value.dtype == tf.string:
                return tf.strings.length(value) > 0
            return tf.ones([tf.shape(value)[0]], tf.bool)

        masked = {
            name: {**episode[name], "there": {key: is_there(v) for key, v in episode[name].items()}}
            for name in ("obs", "task")
        }
        return {**episode, **masked}

    def _windows(self, episode: Tree) -> Tree:
        """Windows of every step: its past, and future actions, with edges repeated."""
        tf, first = self.tf, 1 - self.job.frame_stack
        length = tf.shape(episode["actions"])[0]
        step, last = tf.range(length)[:, None], length - 1
        seen = step + tf.range(first, 1)
        acted = step + tf.range(first, self.job.seq_length)
        kept = tf.maximum(seen, 0)
        obs = tf.nest.map_structure(lambda value: tf.gather(value, kept), episode["obs"])
        actions = tf.gather(episode["actions"], tf.clip_by_value(acted, 0, last))
        still = tf.where(episode["absolute"][:, None], actions, tf.zeros_like(actions))
        actions = tf.where((acted > last)[:, :, None], still, actions)
        return {**episode, "obs": {**obs, "pad_mask": seen >= 0}, "actions": actions}

    def _in_each_frame(self, sample: Tree, stage: Any) -> Tree:
        """Applies `stage` to the observations of each frame of the window, and to the task."""
        tf, obs = self.tf, sample["obs"]
        flat = [tf.unstack(value) for value in tf.nest.flatten(obs)]
        frames = [stage(tf.nest.pack_sequence_as(obs, values)) for values in zip(*flat)]
        stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *frames)
        return {**sample, "obs": stacked, "task": stage(dict(sample["task"]))}

    def _decoded(self, obs: Tree) -> Tree:
        """Decodes and resizes, also if the stored size is the delivered one."""
        tf, target, found = self.tf, self.job.target, dict(obs)

        def resized(picture: Any) -> Any:
            return plain_resize(picture, target)

        for key in obs:
            if key.startswith("camera/"):
                encoded = obs[key]
                found[key] = tf.cond(
                    tf.strings.length(encoded) > 0,
                    lambda data=encoded: resized(tf.io.decode_image(data, expand_animations=False)),
                    lambda: resized(tf.zeros([*target, 3], tf.uint8)),
                )
        return found

    def _augmented(self, obs: Tree) -> Tree:
        """The stage of augmentation, without any: it draws a seed."""
        self.tf.random.uniform([2], maxval=self.tf.int32.max, dtype=self.tf.int32)
        return obs

    def _as_host_takes_it(self, sample: Tree) -> Tree:
        tf, job, obs, taken, begin = self.tf, self.job, sample["obs"], {}, 0
        for key in self.fields.images:
            picture = tf.ensure_shape(obs[key], [job.frame_stack, *job.target, 3])
            taken[key] = tf.cast(picture, tf.float32) / 255.0
        for key, part in self.fields.low_dim.items():
            taken[key] = obs["states"][:, begin : begin + part.size]
            begin += part.size
        taken["language"] = sample["task"]["language"]
        taken["pad_mask"] = obs["pad_mask"][:, None]
        return {"obs": taken, "actions": sample["actions"][job.frame_stack - 1 :]}
