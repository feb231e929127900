"""A short report of a robomimic HDF5 file."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from robomimic_ddp.data.hdf5.structure import Structure, opened
from robomimic_ddp.errors import DataError


def report_of(path: Path) -> dict[str, Any]:
    """Episodes, lengths and keys of the file. Raises DataError for any other file."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(opened(path))
        except OSError as error:
            raise DataError(
                f"{path} is neither the folder of an RLDS dataset nor an HDF5 file: {error}. Name "
                "the folder <name>/<version> that tensorflow-datasets has prepared."
            ) from error
        return _report(path, file)


def _length(file: Structure, episode: str) -> int:
    names = file.names(f"data/{episode}")
    if not any("action" in name for name in names):  # forks have several, under other names
        raise DataError(
            f"{file.path}: {episode} has no actions: found {', '.join(names) or 'nothing'}. "
            "Expected `actions`, as robomimic's files have, or actions by other names with "
            '"action" in them (train.action_keys). Convert the file again.'
        )
    return file.steps(episode)


def _features(file: Structure, place: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, dataset) of an episode, without `next_obs`."""
    for name in file.names(place):
        found = file.find(f"{place}/{name}")
        if hasattr(found, "items"):
            yield from _features(file, f"{place}/{name}", f"{prefix}{name}/")
        elif getattr(found, "shape", None) and not prefix.startswith("next_obs"):
            yield prefix + name, found


def _report(path: Path, file: Structure) -> dict[str, Any]:
    episodes = file.episodes()
    lengths = [_length(file, one) for one in episodes]
    held = {
        name: {"kind": "HDF5", "shape": list(found.shape[1:]), "dtype": str(found.dtype)}
        for name, found in _features(file, f"data/{episodes[0]}")
    }
    return {
        "kind": "hdf5",
        "path": str(path),
        "episodes": len(episodes),
        "episodes_read": len(episodes),
        "length": {
            "min": min(lengths),
            "median": statistics.median(lengths),
            "max": max(lengths),
        },
        "steps": held,
        "filter_keys": sorted(file.names("mask")),
        "use": (
            f'This is HDF5 data: train on it with train.data=[{{"path": "{path}"}}] and `torchrun '
            "--nproc_per_node=N -m robomimic.scripts.train --config cfg.json`; no schema and no "
            "RLDS keys are needed. `python -m robomimic.scripts.get_dataset_info --dataset FILE` "
            "shows more."
        ),
    }
