"""The loaders that `bench data` compares: ours, the shapes that hosts have, and the limit.

The hosts' shapes are written here in our own words: a tf.data pipeline of single samples, turned to
numpy one by one, scaled to float32, and joined by torch's own collate function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from robomimic_ddp.bench.data_set import DataJob, open_dataset

SEED = 1
_LIMIT_FRAMES = 4096
"""So many encoded frames are held in memory for the limit, over and over."""


class Stream:
    """Batches of one rank without end. `ahead`: batches that may be made before they are asked
    for, which a measurement first takes away.
    """

    def __init__(self, batches: Iterator[Any], frames_per_batch: int, ahead: int) -> None:
        self.batches, self.frames_per_batch, self.ahead = batches, frames_per_batch, ahead

    def decoded_over_delivered(self) -> float:
        """Frames decoded for what was delivered / frames delivered, so far."""
        return 1.0


class _Ours(Stream):
    def __init__(self, job: DataJob, world: int, fast_decode: bool) -> None:
        dataset = open_dataset(job, fast_decode)
        self._loader = dataset.make_loader(job.batch, 0, world, SEED, ranks_on_node=1)
        ahead = self._loader.reading.prefetch + self._loader.reading.threads
        super().__init__(_endless(self._loader), job.batch * job.frames_per_sample, ahead)

    def decoded_over_delivered(self) -> float:
        frames = self._loader.settled_frames()
        return frames["frames_decoded"] / frames["frames_delivered"]

    def passes(self) -> int:
        """Passes over the data that are complete."""
        return self._loader.pass_number


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


class _Skipping(Stream):
    """Rank 0 of `world`, which takes every world-th sample of all: with one rank, the host's."""

    def __init__(self, job: DataJob, world: int) -> None:
        import torch

        self._taken = self._kept = 0
        samples = _host_samples(job, open_dataset(job).recipe)
        stream = self

        class Samples(torch.utils.data.IterableDataset):
            def __iter__(self) -> Iterator[Any]:
                for number, sample in enumerate(samples.as_numpy_iterator()):
                    stream._taken += 1
                    if number % world == 0:
                        stream._kept += 1
                        yield sample

        loader = torch.utils.data.DataLoader(Samples(), batch_size=job.batch, num_workers=0)
        super().__init__(iter(loader), job.batch * job.frames_per_sample, 0)

    def decoded_over_delivered(self) -> float:
        return self._taken / self._kept


class _Limit(Stream):
    """Nothing but decoding and resizing, of encoded frames that lie in memory."""

    def __init__(self, job: DataJob, world: int) -> None:
        from robomimic_ddp.rlds.tf_import import import_tensorflow

        tf = import_tensorflow()
        recipe = open_dataset(job).recipe
        per_batch = job.batch * job.frames_per_sample
        frames = _encoded_frames(job, recipe)
        frames = np.resize(np.array(frames, object), (max(1, len(frames) // per_batch), per_batch))

        def made(encoded: Any) -> Any:
            pictures = tf.map_fn(
                _decoded, encoded, fn_output_signature=tf.TensorSpec([*job.stored, 3], tf.uint8)
            )
            return _resized(pictures, job)

        batches = tf.data.Dataset.from_tensor_slices(frames.tolist()).repeat()
        batches = batches.map(made, num_parallel_calls=job.threads, deterministic=True).prefetch(2)
        batches = batches.with_options(_options(job))
        super().__init__(iter(batches), per_batch, 2 + job.threads)


LOADERS: dict[str, Callable[[DataJob, int], Stream]] = {
    "ours": lambda job, world: _Ours(job, world, False),
    "host_shaped": lambda job, world: _Skipping(job, 1),
    "skipping": _Skipping,
    "jpeg_limit": _Limit,
}
"""Name -> (job, world) -> the stream of one rank of `world`. Hosts that do not split the data have
every rank read all of it: so the host's shape is the same at any number of ranks.
"""
FAST = "ours_fast_decode"
LOADERS[FAST] = lambda job, world: _Ours(job, world, True)


def _options(job: DataJob) -> Any:
    from robomimic_ddp.rlds.tf_import import import_tensorflow

    options = import_tensorflow().data.Options()
    options.threading.private_threadpool_size = job.threads
    options.threading.max_intra_op_parallelism = 1
    return options


def _decoded(data: Any) -> Any:
    from robomimic_ddp.rlds.tf_import import import_tensorflow

    return import_tensorflow().io.decode_image(data, channels=3, expand_animations=False)


def _resized(frames: Any, job: DataJob) -> Any:
    """uint8 [N, *stored, 3] -> uint8 [N, *target, 3], bilinear."""
    from robomimic_ddp.rlds.tf_import import import_tensorflow

    tf = import_tensorflow()
    if tuple(job.stored) == tuple(job.target):
        return frames
    resized = tf.image.resize(frames, job.target, "bilinear")
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)


def _windows(job: DataJob, recipe: Any, serialized: Any) -> dict[str, Any]:
    """An episode's record -> all its windows, still encoded: those that ours delivers."""
    from robomimic_ddp.rlds.pipeline import windows_of
    from robomimic_ddp.rlds.tf_import import import_tensorflow

    tf = import_tensorflow()
    episode = recipe.parse(serialized)
    count = tf.shape(next(iter(episode.values())), tf.int64)[0]
    zero = tf.zeros([], tf.int64)
    return windows_of(recipe, episode, [zero, zero, count, count, zero], tf.range(count))


def _host_samples(job: DataJob, recipe: Any) -> Any:
    """tf.data of single samples as hosts make them: shuffled while encoded, decoded, float32."""
    from robomimic_ddp.rlds.tf_import import import_tensorflow

    tf = import_tensorflow()
    scale, offset = recipe.scale, recipe.offset

    def finished(sample: dict[str, Any]) -> dict[str, Any]:
        obs = dict(sample["states"])
        for key, encoded in sample["images"].items():
            signature = tf.TensorSpec([*job.stored, 3], tf.uint8)
            frames = tf.map_fn(_decoded, encoded, fn_output_signature=signature)
            obs[key] = _resized(frames, job)
        return {**sample, "obs": obs}

    def scaled(sample: dict[str, Any]) -> dict[str, Any]:
        obs = {
            key: tf.cast(value, tf.float32) / 255.0 if value.dtype == tf.uint8 else value
            for key, value in sample["obs"].items()
        }
        actions = (sample["actions"] - offset) / scale
        kept = {key: sample[key] for key in ("pad_mask", "language")}
        return {"obs": obs, "actions": actions, **kept}

    threads = job.threads
    files = tf.data.Dataset.from_tensor_slices(list(recipe.files)).shuffle(4096, SEED).repeat()
    episodes = files.interleave(tf.data.TFRecordDataset, cycle_length=4)
    windows = episodes.map(lambda record: _windows(job, recipe, record), num_parallel_calls=threads)
    samples = windows.flat_map(tf.data.Dataset.from_tensor_slices).shuffle(job.buffer, SEED)
    samples = samples.map(finished, num_parallel_calls=threads)
    samples = samples.map(scaled, num_parallel_calls=threads).prefetch(2 * threads)
    return samples.with_options(_options(job))


def _encoded_frames(job: DataJob, recipe: Any) -> list[bytes]:
    """Up to _LIMIT_FRAMES encoded frames of the data set."""
    from robomimic_ddp.rlds.tf_import import import_tensorflow

    tf = import_tensorflow()
    found: list[bytes] = []
    for record in tf.data.TFRecordDataset(list(recipe.files)):
        episode = recipe.parse(record)
        for place in recipe.fields.images.values():
            found += episode[place].numpy().tolist()
        if len(found) >= _LIMIT_FRAMES:
            break
    return found[:_LIMIT_FRAMES]
