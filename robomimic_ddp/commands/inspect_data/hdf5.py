"""Reports on a robomimic HDF5 file."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.data.hdf5.structure import Structure, opened
from robomimic_ddp.errors import DataError


def report_of(path: Path) -> dict[str, Any]:
    """Return the episodes, lengths and keys of the file. Raises DataError for other files."""
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
    if not any("action" in name for name in names):  # forks have several action datasets
        raise DataError(
            f"{file.path}: {episode} has no actions: found {', '.join(names) or 'nothing'}. "
            'Expected `actions`, as in robomimic\'s files, or names that contain "action" '
            "(train.action_keys). Convert the file again."
        )
    steps = file.steps(episode)
    if "actions" in names and hasattr(file.find(f"data/{episode}/actions"), "shape"):
        shape = file.numbers(f"data/{episode}/actions") or ()
        file.require_steps(episode, "actions", shape, steps)
    return steps


def _features(file: Structure, group: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names and descriptions of an episode's datasets, without `next_obs`."""
    for name in file.names(group):
        entry = file.find(f"{group}/{name}")
        if hasattr(entry, "items"):
            yield from _features(file, f"{group}/{name}", f"{prefix}{name}/")
        elif getattr(entry, "shape", None) and not prefix.startswith("next_obs"):
            yield prefix + name, {"shape": list(entry.shape[1:]), "dtype": str(entry.dtype)}


def length_summary(lengths: Sequence[int]) -> dict[str, Any]:
    """Return the number of lengths, and their minimum, median and maximum."""
    return {
        "read": len(lengths),
        "min": min(lengths, default=None),
        "median": statistics.median(lengths) if lengths else None,
        "max": max(lengths, default=None),
    }
