"""Small datasets in the host's HDF5 format, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

LENGTHS = (12, 7, 15, 9, 11, 6)
"""Steps of each episode: uneven, and shorter than some windows."""
ACTION_DIM = 4
LOW_DIM = {"position": 3, "gripper": 1}
CAMERA = "camera_image"


def make_hdf5(
    path: Path,
    *,
    lengths: Sequence[int] = LENGTHS,
    image_size: int | None = None,
    next_obs: bool = True,
    seed: int = 0,
) -> Path:
    """Writes episodes of random walks and returns `path`.

    Observations "position" [T, 3] and "gripper" [T, 1], float64; with `image_size` also
    "camera_image" [T, image_size, image_size, 3], uint8. Actions [T, 4] within [-1, 1]. The last
    two episodes are the filter key "valid", the others "train".
    """
    draw = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(
            {"env_name": "walk", "type": 2, "env_kwargs": {}, "env_version": "1"}
        )
        for number, length in enumerate(lengths):
            _write_episode(data.create_group(f"demo_{number}"), draw, length, image_size, next_obs)
        data.attrs["total"] = int(sum(lengths))
        names = [f"demo_{number}" for number in range(len(lengths))]
        file["mask/train"] = np.array(names[:-2], dtype="S")
        file["mask/valid"] = np.array(names[-2:], dtype="S")
    return path


def _write_episode(
    group: h5py.Group,
    draw: np.random.Generator,
    length: int,
    image_size: int | None,
    next_obs: bool,
) -> None:
    actions = np.tanh(draw.normal(size=(length, ACTION_DIM)))
    observations = {
        name: np.cumsum(draw.normal(size=(length + 1, size)), axis=0)
        for name, size in LOW_DIM.items()
    }
    if image_size is not None:
        shape = (length + 1, image_size, image_size, 3)
        observations[CAMERA] = draw.integers(0, 256, shape, dtype=np.uint8)
    group.attrs["num_samples"] = length
    group["actions"] = actions
    group["rewards"] = (np.arange(length) == length - 1).astype(np.float64)
    group["dones"] = (np.arange(length) == length - 1).astype(np.int64)
    group["states"] = draw.normal(size=(length, 2))
    for name, values in observations.items():
        group[f"obs/{name}"] = values[:-1]
        if next_obs:
            group[f"next_obs/{name}"] = values[1:]
