"""Read the structure of robomimic's HDF5 files: names, attributes, shapes; no frames.

Broken links, attributes and masks of other types, and damage raise a DataError that names the file
and the place in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.errors import DataError, RobomimicDDPError


@contextmanager
def opened(path: Any) -> Iterator[Structure]:
    """Yield the structure of the file `path`. Raises OSError where it is not HDF5."""
    import h5py

    with h5py.File(files.regular(path), "r") as file:
        yield Structure(str(path), file)


@contextmanager
def _reading(where: str) -> Iterator[None]:
    try:
        yield
    except RobomimicDDPError:
        raise
    # h5py passes on any exception of HDF5, numpy and Python's codecs.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise DataError(
            f"{where} cannot be read ({type(error).__name__}: {reason}): damaged, a broken link, "
            "or of a type that Python does not know. Write it again."
        ) from error


class Structure:
    """An open file. Places are paths in it, such as "data/demo_0/obs"."""

    def __init__(self, path: str, file: Any) -> None:
        self.path, self.file = path, file

    def find(self, place: str) -> Any:
        """Return the group or dataset at `place`; None if there is none."""
        with _reading(f"{self.path}: {place!r}"):
            return self.file[place] if place in self.file else None

    def group(self, place: str) -> Any | None:
        """Return the group at `place`; None if there is none. Raises DataError for a dataset."""
        item = self.find(place)
        if item is not None and not hasattr(item, "items"):
            raise DataError(
                f"{self.path}: {place!r} is a dataset; expected a group, as robomimic's files "
                "have there. Convert the file again."
            )
        return item

    def names(self, place: str) -> list[str]:
        """Return the names in the group at `place`; [] without a group."""
        group = self.group(place)
        with _reading(f"{self.path}: {place!r}"):
            return [] if group is None else list(group)

    def episodes(self) -> list[str]:
        """Return the names of the episodes. Raises DataError where there is none."""
        names = self.names("data")
        if not names:
            raise DataError(
                f"{self.path} has no episodes: expected groups data/demo_0, data/demo_1, ..., "
                f"found {', '.join(self.names('/')) or 'nothing'}. Convert it to robomimic's "
                "layout, or use another file."
            )
        return names

    def attribute(self, place: str, name: str) -> Any:
        """Return the attribute `name` of `place`, or None."""
        item = self.find(place)
        with _reading(f"{self.path}: the attribute {name} of {place}"):
            return None if item is None else item.attrs.get(name)

    def steps(self, episode: str) -> int:
        """Return `num_samples` of an episode. Raises DataError if it has none."""
        value = self.attribute(f"data/{episode}", "num_samples")
        with _reading(f"{self.path}: num_samples of {episode}"):
            steps = 0 if value is None else int(value)
            is_whole = value is None or steps == value
        if steps < 1 or not is_whole:
            raise DataError(
                f"{self.path}: {episode} has num_samples={value}: an episode of at least one step "
                "is needed. Remove it from the file, or from the filter key."
            )
        return steps

    def mask(self, key: str) -> list[str]:
        """Return the episodes of the filter key `key`. Raises DataError if it is not a list of
        text.
        """
        dataset = self.find(f"mask/{key}")
        if getattr(getattr(dataset, "dtype", None), "kind", None) not in ("S", "O"):
            raise DataError(
                f"{self.path}: filter key {key!r} is not a list of episodes' names as text, such "
                'as "demo_0". Make it again with the host\'s scripts/split_train_val.py.'
            )
        with _reading(f"{self.path}: filter key {key!r}"):
            return [name.decode() for name in dataset[()]]

    def numbers(self, place: str) -> tuple[int, ...] | None:
        """Return the shape of the dataset at `place`, or None. Raises DataError unless numeric."""
        dataset = self.find(place)
        if dataset is None:
            return None
        with _reading(f"{self.path}: {place!r}"):
            dtype, shape = getattr(dataset, "dtype", None), getattr(dataset, "shape", None)
            if dtype is None or shape is None or dtype.kind not in "biuf":
                is_what = "a group" if dtype is None else "empty" if shape is None else f"{dtype}"
                raise DataError(
                    f"{self.path}: {place!r} is {is_what}; expected an array of numbers. Take it "
                    "out of the config, or write the dataset again."
                )
            self._require_stored(place, dataset)
            return tuple(shape)

    def _require_stored(self, place: str, dataset: Any) -> None:
        """Raise DataError for numbers in a file that is not there, which HDF5 reads as 0, and for
        those of files that are not HDF5, which may be any bytes.
        """
        sources = dataset.virtual_sources() if dataset.is_virtual else ()
        missing = [
            source.file_name
            for source in sources
            if source.file_name != "." and "%" not in source.file_name
            if not any(
                os.path.isfile(os.path.join(folder, source.file_name))
                for folder in (os.path.dirname(self.path), "")
            )
        ]
        raw = [name for name, *_ in dataset.external or ()]
        if missing or raw:
            raise DataError(
                f"{self.path}: {place!r} takes its numbers from {(missing or raw)[0]!r}, which is "
                f"{'not there' if missing else 'not an HDF5 file'}: expected them in this file, or "
                "in HDF5 files next to it. Copy those too, or write the dataset again (h5repack)."
            )

    def require_steps(self, episode: str, place: str, shape: tuple[int, ...], steps: int) -> None:
        """Raise DataError if the dataset at `place` of an episode, of this shape, is shorter."""
        if not shape or shape[0] < steps:
            raise DataError(
                f"{self.path}: {episode}: {place!r} has shape {shape}, but num_samples says "
                f"{steps} steps. Write the episode again."
            )
