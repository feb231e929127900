"""A short report of a robomimic HDF5 file."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.data.hdf5.structure import Structure, opened
from robomimic_ddp.errors import DataError

_MOST_GROUPS = 10


def report_of(path: Path) -> dict[str, Any]:
    """Return episodes, lengths and keys of the file. Raises DataError for any other file."""
    try:
        with opened(path) as file:
            episodes = file.episodes()
            lengths = [_length(file, episode) for episode in episodes]
            return {
                "kind": "hdf5",
                "path": str(path),
                "episodes": len(episodes),
                "length": length_summary(lengths),
                "features": dict(_features(file, f"data/{episodes[0]}")),
                "filter_keys": sorted(file.names("mask")),
            }
    except OSError as error:
        raise DataError(
            f"{path} is neither the folder of an RLDS dataset nor an HDF5 file: {error}. Name the "
            "folder <name>/<version> that tensorflow-datasets has prepared."
        ) from error


def _length(file: Structure, episode: str) -> int:
    names = file.names(f"data/{episode}")
    if not any("action" in name for name in names):  # forks have several, under other names
        raise DataError(
            f"{file.path}: {episode} has no actions: found {', '.join(names) or 'nothing'}. "
            "Expected `actions`, as robomimic's files have, or actions by other names with "
            '"action" in them (train.action_keys). Convert the file again.'
        )
    steps = file.steps(episode)
    if "actions" in names and hasattr(file.find(f"data/{episode}/actions"), "shape"):
        shape = file.numbers(f"data/{episode}/actions") or ()
        file.require_steps(episode, "actions", shape, steps)
    return steps


def _features(file: Structure, place: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names and descriptions of an episode's datasets, without `next_obs`."""
    if place.count("/") > _MOST_GROUPS:
        raise DataError(
            f"{file.path}: {place} is more than {_MOST_GROUPS} groups deep: a group contains "
            "itself, by a link. Expected data/demo_N/obs/KEY. Write the episode again."
        )
    for name in file.names(place):
        entry = file.find(f"{place}/{name}")
        if hasattr(entry, "items"):
            yield from _features(file, f"{place}/{name}", f"{prefix}{name}/")
        elif getattr(entry, "shape", None) and not prefix.startswith("next_obs"):
            yield prefix + name, {"shape": list(entry.shape[1:]), "dtype": str(entry.dtype)}


def length_summary(lengths: Sequence[int]) -> dict[str, Any]:
    """Return the range and median of the episodes read, and how many they are."""
    return {
        "read": len(lengths),
        "min": min(lengths, default=None),
        "median": statistics.median(lengths) if lengths else None,
        "max": max(lengths, default=None),
    }
