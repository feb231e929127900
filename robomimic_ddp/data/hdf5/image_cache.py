"""`ddp.cache` for HDF5: images that hosts read from the file for each sample, which they do unless
`train.hdf5_cache_mode=all`. Here these are memory-mapped, once for all ranks and jobs of the node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.data import frame_cache
from robomimic_ddp.data.frame_cache import Column
from robomimic_ddp.data.sampling.nested_loaders import parts_of
from robomimic_ddp.errors import DataError

LOW_DIM, ALL = "low_dim", "all"
"""Of `train.hdf5_cache_mode`: numbers, or everything, are in the memory of each process."""
OBS = "obs"


def add_cache(datasets: Sequence[Any], cache: str, most_gib: float) -> None:
    """Collective: gives the host's `datasets` (or mixtures of them, or None) the images that they
    read from the file, to the bit; see `frame_cache.fill_together`. Those with cache mode ALL are
    left as they are. Raises DataError.
    """
    if cache.lower() == frame_cache.NONE:
        return
    sequences = [part for one in datasets for part in parts_of(one)]
    sequences = [one for one in sequences if getattr(one, "hdf5_cache_mode", ALL) != ALL]

    def opened(root: Path) -> Iterator[tuple]:
        for one in sequences:
            images = {}
            for place in _images(one):
                column, names = _column(root, one, place)
                rows = np.flatnonzero(np.isin(names, one.demos))
                yield [column], rows, _Reader(one, place, names).write
                images[place] = column, {names[row]: row for row in rows.tolist()}
            one.cached = one.get_dataset_for_ep = CachedImages(root, one, images)

    frame_cache.fill_together(cache, most_gib, opened)
    for one in sequences:
        one.close_and_delete_hdf5_handle()  # as the host leaves it: data workers are forked


class CachedImages:
    """`get_dataset_for_ep` of the host's dataset `one`, with `images` from their columns.

    images: place in an episode -> its column, and the row of each episode there; bytes: of those.
    """

    def __init__(
        self, root: Path, one: Any, images: Mapping[str, tuple[Column, Mapping[str, int]]]
    ) -> None:
        self.root, self._dataset, self._images = root, one, images
        rows = ((column, list(row_of.values())) for column, row_of in images.values())
        self.bytes = sum(column.bytes_of(np.array(some, int)) for column, some in rows)

    def __call__(self, ep: str, key: str, *more: Any, **named: Any) -> Any:
        if key not in self._images:
            return type(self._dataset).get_dataset_for_ep(self._dataset, ep, key, *more, **named)
        column, row_of = self._images[key]
        begin = column.starts[row_of[ep]]
        return column.values[begin : begin + column.lengths[row_of[ep]]]


def _images(one: Any) -> list[str]:
    """Places in an episode of the images that the host reads from the file for each sample."""
    first = one.hdf5_file.get(f"data/{one.demos[0]}")
    if first is None or OBS not in first:
        raise DataError(
            f"{one.hdf5_path} has no data/{one.demos[0]}/{OBS}, where robomimic has observations. "
            "ddp.cache knows no other layout: train without it (ddp.cache=none)."
        )
    folders = [OBS, "next_obs"] if one.load_next_obs else [OBS]
    in_memory = one.obs_keys_in_memory if one.hdf5_cache_mode == LOW_DIM else ()
    wanted = [key for key in one.obs_keys if key not in in_memory]
    keys = [key for key in wanted if getattr(first.get(f"{OBS}/{key}"), "dtype", None) == np.uint8]
    return [f"{folder}/{key}" for folder in folders for key in keys]


def _column(root: Path, one: Any, place: str) -> tuple[Column, list[str]]:
    """The column of `place` of all episodes of the file, and their names. Raises DataError for one
    that is used and differs from the first.
    """
    found, data = os.stat(one.hdf5_path), one.hdf5_file["data"]
    frames = {name: data[name].get(place) for name in sorted(data)}
    frames = {name: part for name, part in frames.items() if hasattr(part, "dtype")}
    kinds = {name: (part.shape[1:], part.dtype) for name, part in frames.items()}
    expected = kinds.get(one.demos[0])
    for name in one.demos:
        if expected is None or kinds.get(name) != expected:
            raise DataError(
                f"{one.hdf5_path}: {place!r} of {name} is {_shown(kinds.get(name))}, that of "
                f"{one.demos[0]} is {_shown(expected)}. One cache has images of one size: use "
                "episodes that agree, or train without it (ddp.cache=none)."
            )
    shapes = {name: part.shape for name, part in frames.items()}
    described = {
        "file": [os.path.basename(one.hdf5_path), found.st_size, found.st_mtime_ns],
        "place": place,
        "episodes": list(shapes.items()),
    }
    path = frame_cache.file_in(root, f"{Path(one.hdf5_path).stem}-{place}", described)
    lengths = np.array([shape[0] for shape in shapes.values()], np.int64)
    return Column(path, lengths, expected[0], np.uint8), list(shapes)


def _shown(kind: tuple | None) -> str:
    return f"{kind[1]} {list(kind[0])}" if kind else "missing"


class _Reader:
    """Copies episodes from the file of the host's dataset `one`."""

    def __init__(self, one: Any, place: str, names: Sequence[str]) -> None:
        self._dataset, self._place, self._names = one, place, names

    def write(self, rows: np.ndarray, columns: Sequence[Column]) -> Iterator[Sequence[int]]:
        """See `frame_cache.Write`."""
        for row in rows:
            place = f"data/{self._names[row]}/{self._place}"
            try:
                frames = self._dataset.hdf5_file[place][()]
            except OSError as error:
                path = self._dataset.hdf5_path
                raise DataError(
                    f"{path}: {place!r} cannot be read: {error}. Copy the file again."
                ) from error
            readable = np.zeros(len(frames), bool)
            yield [column.write(int(row), frames, readable) for column in columns]
