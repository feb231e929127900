"""A short report of a robomimic HDF5 file, and what to do with one."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from robomimic_ddp.errors import DataError


def report_of(path: Path) -> dict[str, Any]:
    """Episodes, lengths and keys of the file. Raises DataError for any other file."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            if "data" not in file or not len(file["data"]):
                raise DataError(
                    f"{path} is HDF5, but holds no group `data` with episodes, as robomimic's "
                    "files "
                    f"do: found {', '.join(file) or 'nothing'}."
                )
            return _report(path, file)
    except OSError as error:
        raise DataError(
            f"{path} is neither the folder of an RLDS data set nor an HDF5 file: {error}. Name the "
            "folder <name>/<version> that tensorflow-datasets has prepared."
        ) from error


def _length(episode: Any) -> int:
    if "num_samples" in episode.attrs:
        return int(episode.attrs["num_samples"])
    if "actions" not in episode:
        raise DataError(
            f"{episode.file.filename}: episode {episode.name} has neither `actions` nor the "
            "attribute `num_samples`, as robomimic's files have. Convert the file again."
        )
    return len(episode["actions"])


def _report(path: Path, file: Any) -> dict[str, Any]:
    episodes = [file["data"][name] for name in file["data"]]
    lengths = [_length(one) for one in episodes]
    first, held = episodes[0], {}

    def note(name: str, value: Any) -> None:
        if hasattr(value, "shape") and not name.startswith("next_obs"):
            held[name] = {
                "kind": "HDF5",
                "shape": list(value.shape[1:]),
                "dtype": str(value.dtype),
            }

    first.visititems(note)
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
        "filter_keys": sorted(file["mask"]) if "mask" in file else [],
        "use": (
            f'This is HDF5 data: train on it with train.data=[{{"path": "{path}"}}] and '
            "`python -m robomimic.scripts.train --config cfg.json`; no schema and no RLDS keys are "
            "needed. `python -m robomimic.scripts.get_dataset_info --dataset FILE` tells more."
        ),
    }
