"""The loaders that `bench data` compares: ours, the shapes that hosts have (`data_host`), octo
itself where it is at hand (`data_octo`), and the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from robomimic_ddp.bench.data import FAST, OCTO
from robomimic_ddp.bench.data_host import host_samples
from robomimic_ddp.bench.data_octo import octo_samples
from robomimic_ddp.bench.data_set import DataJob, open_dataset
from robomimic_ddp.rlds.resampling import plain_resize

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


class _Samples(Stream):
    """Rank 0 of `world`, which takes every world-th of all single `samples`, as hosts have them:
    numpy, joined by torch's own collate function. With one rank, the host's.
    """

    def __init__(self, job: DataJob, samples: Any, world: int) -> None:
        import torch

        self._taken = self._kept = 0
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
                lambda data: tf.io.decode_image(data, channels=3, expand_animations=False),
                encoded,
                fn_output_signature=tf.TensorSpec([*job.stored, 3], tf.uint8),
            )
            if tuple(job.stored) == tuple(job.target):
                return pictures
            return plain_resize(pictures, job.target, job.filter)

        batches = tf.data.Dataset.from_tensor_slices(frames.tolist()).repeat()
        batches = batches.map(made, num_parallel_calls=job.threads, deterministic=True).prefetch(2)
        batches = batches.with_options(_options(job))
        super().__init__(iter(batches), per_batch, 2 + job.threads)


LOADERS: dict[str, Callable[[DataJob, int], Stream]] = {
    "ours": lambda job, world: _Ours(job, world, False),
    "host_shaped": lambda job, world: _Samples(job, host_samples(job, _options(job)), 1),
    "skipping": lambda job, world: _Samples(job, host_samples(job, _options(job)), world),
    "jpeg_limit": _Limit,
}
"""Name -> (job, world) -> the stream of one rank of `world`. Hosts that do not split the data have
every rank read all of it: so the host's shape is the same at any number of ranks.
"""
LOADERS[FAST] = lambda job, world: _Ours(job, world, True)
LOADERS[OCTO] = lambda job, world: _Samples(job, octo_samples(job), 1)


def _options(job: DataJob) -> Any:
    from robomimic_ddp.rlds.tf_import import import_tensorflow

    options = import_tensorflow().data.Options()
    options.threading.private_threadpool_size = job.threads
    options.threading.max_intra_op_parallelism = 1
    return options


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
