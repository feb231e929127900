"""The loaders of `scripts.bench.data`. Imported before its processes are forked, so the import must
not start a thread of TensorFlow.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from robomimic_ddp.config import env, machine
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.pipeline.settings import PREFETCHED_BATCHES
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from scripts.bench.loading.data_host import HostPipeline, plain_resize
from scripts.bench.loading.data_set import OURS, DataJob, open_dataset

_LIMIT_FRAMES = 4096
"""Encoded frames in memory, for the limit."""


@dataclass
class Stream:
    """Endless batches of one rank. ahead: number of prefetched batches, which a measurement reads
    first; decoded_over_delivered(): ratio of frames so far.
    """

    batches: Iterator[Any]
    frames_per_batch: int
    ahead: int = 0
    decoded_over_delivered: Callable[[], float] = lambda: 1.0


def make_stream(job: DataJob, loader: str, world: int) -> Stream:
    """The stream of one rank of `world`. Hosts that do not split the data read all of it on every
    rank; `skipping` keeps every world-th sample.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's, for read-only numpy arrays
    if loader in OURS:
        return _ours(job.read_by(loader), world)
    options = import_tensorflow().data.Options()
    options.threading.private_threadpool_size = job.threads
    options.threading.max_intra_op_parallelism = 1
    if loader == "jpeg_limit":
        return _limit(job, options)
    return _samples(job, options, world if loader == "skipping" else 1)


def _ours(job: DataJob, world: int) -> Stream:
    loader = make_loader(open_dataset(job), job.batch, 0, world, 1, cores=machine.usable_cores())

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    def decoded_over_delivered() -> float:
        frames = loader.settled_frames()
        return frames["frames_decoded"] / frames["frames_delivered"]

    ahead = PREFETCHED_BATCHES + loader.batching.threads
    return Stream(batches(), job.batch * job.frames_per_sample, ahead, decoded_over_delivered)


def _samples(job: DataJob, options: Any, world: int) -> Stream:
    """Rank 0 of `world`, as in hosts: numpy samples, joined by torch's collate function."""
    samples = HostPipeline(job).samples().with_options(options)
    taken = [0, 0]

    class Samples(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            for number, sample in enumerate(samples.as_numpy_iterator()):
                taken[0] += 1
                if number % world == 0:
                    taken[1] += 1
                    yield sample

    loader = torch.utils.data.DataLoader(Samples(), batch_size=job.batch, num_workers=0)
    frames = job.batch * job.frames_per_sample
    return Stream(iter(loader), frames, decoded_over_delivered=lambda: taken[0] / taken[1])


def _limit(job: DataJob, options: Any) -> Stream:
    """Only decodes and resizes encoded frames in memory."""
    tf, settings = import_tensorflow(), open_dataset(job).settings
    per_batch = job.batch * job.frames_per_sample
    frames: list[bytes] = []
    for record in tf.data.TFRecordDataset(list(settings.files)).as_numpy_iterator():
        episode = settings.parse(record)
        for place in settings.fields.images.values():
            frames += episode[place]
        if len(frames) >= _LIMIT_FRAMES:
            break
    count = max(1, min(len(frames), _LIMIT_FRAMES) // per_batch)
    encoded = np.resize(np.array(frames[:_LIMIT_FRAMES], object), (count, per_batch))

    def made(encoded: Any) -> Any:
        pictures = tf.map_fn(
            lambda data: tf.io.decode_image(data, channels=3, expand_animations=False),
            encoded,
            fn_output_signature=tf.TensorSpec([*job.stored, 3], tf.uint8),
        )
        if tuple(job.stored) == tuple(job.target):
            return pictures
        return plain_resize(pictures, job.target)

    batches = tf.data.Dataset.from_tensor_slices(encoded.tolist()).repeat()
    batches = batches.map(made, num_parallel_calls=job.threads, deterministic=True).prefetch(2)
    return Stream(iter(batches.with_options(options)), per_batch, 2 + job.threads)


env.defer_tensorflow()
import_tensorflow(), importlib.import_module("tensorflow_datasets")
