"""`ddp.cache` for HDF5: with `train.hdf5_cache_mode=low_dim` hosts keep numbers in memory and read
images from the file for each sample. Here these are memory-mapped, once for all ranks and jobs of
the node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.data import frame_cache
from robomimic_ddp.data.frame_cache import Column
from robomimic_ddp.errors import DataError

CACHE_MODE, OBS = "low_dim", "obs"


def add_cache(datasets: Sequence[Any], cache: str, most_gib: float) -> None:
    """Collective: gives the host's `datasets` (or mixtures of them, or None) their images where
    they keep numbers, to the bit; see `frame_cache.fill_together`. Other cache modes are left as
    they are.
    """
    sequences = [part for one in datasets for part in getattr(one, "datasets", [one])]
    sequences = [one for one in sequences if getattr(one, "hdf5_cache_mode", None) == CACHE_MODE]

    def opened(root: Path) -> Iterator[tuple]:
        for one in sequences:
            places = _images(one)
            for place in places:
                column, names = _column(root, one, place)
                rows = np.flatnonzero(np.isin(names, one.demos))
                yield [column], rows, _Reader(one, place, names).write
                folder, key = place.split("/")
                for row in rows:
                    begin = column.starts[row]
                    frames = column.values[begin : begin + column.lengths[row]]
                    one.hdf5_cache[names[row]][folder][key] = frames
            keys = [key for folder, key in (place.split("/") for place in places) if folder == OBS]
            one.obs_keys_in_memory = [*one.obs_keys_in_memory, *keys]

    frame_cache.fill_together(cache, most_gib, opened)
    for one in sequences:
        one.close_and_delete_hdf5_handle()  # as the host leaves it: data workers are forked


def _images(one: Any) -> list[str]:
    """Places in an episode of the images that the host reads from the file for each sample."""
    folders = [OBS, "next_obs"] if one.load_next_obs else [OBS]
    first = one.hdf5_file[f"data/{one.demos[0]}"]
    wanted = [key for key in one.obs_keys if key not in one.obs_keys_in_memory]
    keys = [key for key in wanted if getattr(first.get(f"obs/{key}"), "dtype", None) == np.uint8]
    return [f"{folder}/{key}" for folder in folders for key in keys]


def _column(root: Path, one: Any, place: str) -> tuple[Column, list[str]]:
    """The column of `place` of all episodes of the file, and their names."""
    found, data = os.stat(one.hdf5_path), one.hdf5_file["data"]
    frames = {name: data[name].get(place) for name in sorted(data)}
    shapes = {name: part.shape for name, part in frames.items() if part is not None}
    described = {
        "file": [os.path.basename(one.hdf5_path), found.st_size, found.st_mtime_ns],
        "place": place,
        "episodes": list(shapes.items()),
    }
    path = frame_cache.file_in(root, f"{Path(one.hdf5_path).stem}-{place}", described)
    lengths = np.array([shape[0] for shape in shapes.values()], np.int64)
    return Column(path, lengths, shapes[one.demos[0]][1:], np.uint8), list(shapes)


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
