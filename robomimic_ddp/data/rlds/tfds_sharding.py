"""Shard episodes over ranks in hosts with a pipeline over tensorflow-datasets (octo, dlimp).

While it is built, `DatasetBuilder.as_dataset` reads this rank's shard of a split, by
`tfds.even_splits`: disjoint, complete, fixed for the run, however the host shuffles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from robomimic_ddp.config import paths
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.data.rlds.index.source import find_dataset
from robomimic_ddp.errors import DataError

BUFFER = "shuffle_buffer_size"
WHOLE = "all"
"""The split over which octo computes statistics: always read whole, and never trained on."""


def make_sharded(
    make_dataset: Callable,
    args: tuple,
    kwargs: dict,
    *,
    rank: int,
    world_size: int,
) -> Any:
    """Return `make_dataset(*args, **kwargs)`, which reads only this rank's episodes of each tfds
    dataset.

    Divides the keyword `shuffle_buffer_size` by the ranks. Raises DataError for fewer episodes than
    ranks, and if the call would compute statistics of a shard, or train on all.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds

    if isinstance(kwargs.get(BUFFER), int):
        kwargs = {**kwargs, BUFFER: max(1, kwargs[BUFFER] // world_size)}
    shares = _Shares(tf, tfds, rank, world_size)
    with ExitStack() as stack:
        stack.enter_context(_around(tfds.core.DatasetBuilder, "as_dataset", shares.read))
        for name in ("__iter__", "reduce"):
            stack.enter_context(_around(tf.data.Dataset, name, shares.look))
        dataset = make_dataset(*args, **kwargs)
    shares.require_sharded(dataset, getattr(make_dataset, "__name__", "the call"))
    return dataset


def require_datasets(data_path: str, names: Sequence[str]) -> None:
    """Raise DataError for a dataset that is not in the folder `data_path` (unless gs://...)."""
    if "://" in data_path:
        return
    for name in names:
        base = re.split("[:/]", name)[0]  # tfds: name/config:version
        if not base or not (paths.expanded(data_path) / base).is_dir():
            find_dataset(data_path, base)


class _Shares:
    """What is read while a pipeline is built; sharded: this rank's shards; whole: all episodes."""

    def __init__(self, tf: Any, tfds: Any, rank: int, world_size: int) -> None:
        self.tf, self.tfds = tf, tfds
        self.rank, self.world_size = rank, world_size
        self.sharded: list[Any] = []
        self.whole: list[Any] = []

    def read(
        self,
        as_dataset: Callable,
        builder: Any,
        split: Any = None,
        *,
        read_config: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return `builder.as_dataset(split, ...)` with this rank's episodes only."""
        if split == WHOLE:
            dataset = as_dataset(builder, split, read_config=read_config, **kwargs)
            self.whole.append(dataset)
            return dataset
        if getattr(read_config, "input_context", None) is not None:
            raise DataError(
                f"the host sets ReadConfig.input_context for dataset {builder.name}: it already "
                "splits the files over ranks, so a second split could lose episodes. Remove one "
                "of the two."
            )
        split = {name: name for name in builder.info.splits} if split is None else split
        split = self.tf.nest.map_structure(lambda name: self._share(builder, name), split)
        datasets = as_dataset(builder, split, read_config=read_config, **kwargs)
        self.sharded += self._datasets(datasets)
        return datasets

    def look(self, method: Callable, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse to iterate over a shard while the pipeline is built, as statistics do."""
        if self.tf.executing_eagerly() and self._comes_from(dataset, self.sharded):
            raise DataError(
                "statistics (such as those for normalisation) would be computed from this rank's "
                "episodes alone, and would differ between ranks. Compute them from all episodes "
                "before the training dataset is made, and pass them (octo: dataset_statistics=...)."
            )
        return method(dataset, *args, **kwargs)

    def require_sharded(self, dataset: Any, name: str) -> None:
        """Raise DataError if every rank would read the same records."""
        datasets = self._datasets(dataset)
        if not self.sharded or any(self._comes_from(each, self.whole) for each in datasets):
            reads = f"reads the whole of split {WHOLE!r}" if self.whole else "reads no tfds dataset"
            raise DataError(
                f"{name} {reads}, so each of {self.world_size} ranks would train on the same "
                "records. Expected builder.as_dataset(split=...) with a training split, such as "
                f"'train' or 'train[:95%]', inside {name}; it is split over the ranks."
            )

    def _share(self, builder: Any, split: Any) -> Any:
        """Return this rank's shard of `split`; sizes differ by at most one."""
        count = builder.info.splits[split].num_examples
        if count < self.world_size:
            raise DataError(
                f"dataset {builder.name} has {count} episode(s) in split {str(split)!r}, fewer "
                f"than the {self.world_size} ranks, so some rank would have nothing to read. Use "
                "fewer ranks, or a larger split."
            )
        return self.tfds.even_splits(split, self.world_size, drop_remainder=False)[self.rank]

    def _datasets(self, structure: Any) -> list[Any]:
        values = self.tf.nest.flatten(structure)
        return [value for value in values if isinstance(value, self.tf.data.Dataset)]

    def _comes_from(self, dataset: Any, sources: list[Any]) -> bool:
        """Return whether `dataset` is one of `sources`, or made of one by map, filter, ..."""
        wanted, todo, seen = {id(source) for source in sources}, [dataset], set()
        while todo:
            source = todo.pop()
            if id(source) in wanted:
                return True
            if id(source) not in seen:
                seen.add(id(source))
                todo += source._inputs()
        return False


def _around(owner: type, name: str, wrapper: Callable) -> AbstractContextManager[None]:
    """For the block, make `owner.name` call `wrapper(original, ...)`."""
    original = getattr(owner, name)
    return swapped(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))
