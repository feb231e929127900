"""`ddp.cache` for RLDS data: fills the columns of a dataset, each frame decoded once for all ranks
and jobs of the node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import machine
from robomimic_ddp.data import frame_cache
from robomimic_ddp.data.frame_cache import Column
from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.index.cache import fingerprint
from robomimic_ddp.data.rlds.index.records import raw_records
from robomimic_ddp.data.rlds.index.statistics import TEXT_END
from robomimic_ddp.data.rlds.loaders.diagnose import named_error
from robomimic_ddp.data.rlds.pipeline.images import decode
from robomimic_ddp.data.rlds.schema.actions import action_vectors, part_values
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError


@dataclass(frozen=True)
class CachedFrames:
    """Columns of a dataset. images: host camera key -> uint8 [S, height, width, 3]; numbers:
    float32 [S, states + actions + 1], states in the order of `Fields.low_dim`; the last is the
    number of the step's instruction among the episode's. bytes: what the run needs of them.
    """

    root: Path
    images: dict[str, Column]
    numbers: Column
    bytes: int

    @property
    def columns(self) -> list[Column]:
        """All columns."""
        return [*self.images.values(), self.numbers]


def add_cache(datasets: Sequence[RLDSDataset], cache: str, most_gib: float) -> None:
    """Collective: sets `cached` of each of `datasets`, all of a run, whose `rows` are the episodes
    to cache; see `frame_cache.fill_together`.
    """
    if cache.lower() == frame_cache.NONE:
        return
    threads = machine.share_of_cores(machine.own_cores(), group.cores_of_node())

    def opened(root: Path) -> Iterator[tuple]:
        for one in datasets:
            one.cached = _opened(one, root)
            yield one.cached.columns, one.rows, _Maker(one, threads).write

    frame_cache.fill_together(cache, most_gib, opened)


def _opened(dataset: RLDSDataset, root: Path) -> CachedFrames:
    """The columns, as far as they are filled."""
    index, size, settings = dataset.index, dataset.size, dataset.settings
    digest, skip = hashlib.sha256(), dataset.options.skip_corrupt
    for part in (index.file, index.offset, index.length):
        digest.update(np.asarray(part, np.int64).tobytes())
    known = {"episodes": digest.hexdigest(), "skip_corrupt": skip}

    def column(name: str, item: tuple[int, ...], kind: type, **more: Any) -> Column:
        path = frame_cache.file_in(root, f"{dataset.source.name}-{name}", {**known, **more})
        return Column(path, np.asarray(index.length, np.int64), item, kind)

    images = {
        key: column(
            f"{feature}-{size.height}x{size.width}",
            (*size.pixels, 3),
            np.uint8,
            feature=feature,
            filter=size.filter,
            scale=settings.reduced.get(key, 1),
            tensorflow=import_tensorflow().__version__,  # its JPEG decoder may change
            **dataset.source.identity,
        )
        for key, feature in dataset.fields.images.items()
    }
    states = sum(int(np.prod(shape)) for shape in dataset.fields.low_dim_shapes.values())
    width = states + dataset.fields.action_size + 1
    fields = fingerprint(dataset.source.identity, dataset.fields, skip)
    numbers = column("numbers", (width,), np.float32, fields=fields)
    needed = frame_cache.size_of([([*images.values(), numbers], dataset.rows)])
    return CachedFrames(root, images, numbers, needed)


class _Maker:
    """Decodes episodes in threads, with the pipeline's own functions, and writes them."""

    def __init__(self, dataset: RLDSDataset, threads: int) -> None:
        self._dataset, self._threads = dataset, threads

    def write(self, rows: np.ndarray, columns: Sequence[Column]) -> Iterator[Sequence[int]]:
        """See `frame_cache.Write`."""
        with ThreadPoolExecutor(self._threads) as pool:
            yield from pool.map(lambda row: self._written(int(row), columns), rows)

    def _written(self, row: int, columns: Sequence[Column]) -> list[int]:
        cached, length = self._dataset.cached, int(self._dataset.index.length[row])
        read = self._read(row, length)
        checksums = []
        for column in columns:
            if column is cached.numbers:
                values, damaged = self._numbers(row, read, length)
            else:
                (key,) = (key for key, one in cached.images.items() if one is column)
                values, damaged = self._pictures(row, key, read, length)
            checksums.append(column.write(row, values, damaged))
        return checksums

    def _read(self, row: int, length: int) -> dict[str, Any] | None:
        """The episode's tensors; None for a record that cannot be read, with skip_corrupt."""
        tf, index = import_tensorflow(), self._dataset.index
        file = self._dataset.settings.files[index.file[row]]
        try:
            read = self._parse(tf.constant(file), tf.constant(index.offset[row], tf.int64))
            for name in {*read} - {"texts"}:
                tf.debugging.assert_equal(len(read[name]), length, f"{name}: its steps")
        except (tf.errors.OpError, ValueError) as error:
            return self._refused(row, error)
        return read

    def _refused(self, row: int, error: Exception) -> None:
        """Raises DataError for `error`; returns None with skip_corrupt."""
        if not self._dataset.options.skip_corrupt:
            folder = self._dataset.source.folder
            doing = f"rank {group.rank()} was filling the frame cache of {folder}"
            raise named_error(self._dataset, [row], error, doing) from error

    def _numbers(self, row: int, read: Any, length: int) -> tuple[np.ndarray, np.ndarray]:
        if read is None:
            width = self._dataset.cached.numbers.values.shape[1]
            return np.zeros((length, width), np.float32), np.ones(length, bool)
        texts = read["texts"].numpy()
        if TEXT_END.join(texts) != bytes(self._dataset.index.texts[row]) and len(texts):
            raise DataError(
                f"{self._dataset.describe_episode(row)}: its instructions are not those of the "
                "index. Delete the index from train.data_cache_dir, or set ddp.cache=none."
            )
        return read["numbers"].numpy(), np.zeros(length, bool)

    def _pictures(
        self, row: int, key: str, read: Any, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        tf, damaged = import_tensorflow(), np.zeros(length, bool)
        errors = (tf.errors.OpError, ValueError)
        if read is not None:
            try:
                return self._decode[key](read[key]).numpy(), damaged
            except errors as error:
                self._refused(row, error)
        frames = np.zeros((length, *self._dataset.size.pixels, 3), np.uint8)
        for step in range(length):
            try:
                damaged[step] = read is None
                frames[step] = 0 if read is None else self._decode[key](read[key][step : step + 1])
            except errors:
                damaged[step] = True
        return frames, damaged

    @cached_property
    def _parse(self) -> Any:
        """A TensorFlow function: file, offset -> encoded frames of each camera, numbers, texts."""
        tf, settings = import_tensorflow(), self._dataset.settings
        fields = settings.fields

        def parse(file: Any, offset: Any) -> dict[str, Any]:
            episode = settings.parse(raw_records(file, offset).take(1).get_single_element())
            actions = action_vectors(episode, fields.actions)
            length = tf.shape(actions)[0]
            parts = [part_values(episode, part) for part in fields.low_dim.values()]
            said, texts = tf.zeros([length, 1]), tf.constant([], tf.string)
            if fields.language:
                texts, number = tf.unique(episode[fields.language])
                said = tf.cast(number[:, None], tf.float32)
            parts = [tf.reshape(part, [length, -1]) for part in (*parts, actions, said)]
            found = {"numbers": tf.concat(parts, 1), "texts": texts}
            return {**found, **{key: episode[place] for key, place in fields.images.items()}}

        return tf.function(parse, autograph=False)

    @cached_property
    def _decode(self) -> dict[str, Any]:
        """TensorFlow functions of each camera: strings [N] -> uint8 [N, height, width, 3]."""
        tf, settings = import_tensorflow(), self._dataset.settings
        with tf.device("CPU:0"):
            counter = tf.Variable(0, dtype=tf.int64, trainable=False)

        def of_camera(key: str) -> Any:
            place = settings.stored[key], settings.size, counter, settings.reduced.get(key, 1)
            signature = [tf.TensorSpec([None], tf.string)]
            return tf.function(lambda data: decode(data, *place), signature, autograph=False)

        return {key: of_camera(key) for key in settings.fields.images}
