"""Writes RLDS datasets in DROID's schema, as tensorflow-datasets reads them."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import paths
from robomimic_ddp.data.rlds.index.example import example_class
from robomimic_ddp.data.rlds.index.records import record_writer
from robomimic_ddp.data.rlds.pipeline.images import encode_jpeg

CAMERAS = ("exterior_image_1_left", "exterior_image_2_left", "wrist_image_left")
STATES = {"cartesian_position": 6, "gripper_position": 1, "joint_position": 7}
PARTS = {"cartesian_position": 6, "gripper_position": 1}
"""Of the action; lengths, as of STATES."""
JPEG_QUALITY = 92


def droid_features(height: int, width: int, cameras: Sequence[str] = CAMERAS) -> Any:
    """The features of one episode; images are JPEG, [height, width, 3] uint8 when decoded."""
    from tensorflow_datasets import features

    def vector(size: int) -> Any:
        return features.Tensor(shape=(size,), dtype=np.float64)

    image = {
        camera: features.Image(shape=(height, width, 3), encoding_format="jpeg")
        for camera in cameras
    }
    state = {name: vector(size) for name, size in STATES.items()}
    return features.FeaturesDict(
        {
            "steps": features.Dataset(
                {
                    "observation": {**image, **state},
                    "action_dict": {name: vector(size) for name, size in PARTS.items()},
                    "action": vector(7),
                    "language_instruction": features.Text(),
                    "is_first": np.bool_,
                    "is_last": np.bool_,
                    "is_terminal": np.bool_,
                    "reward": np.float32,
                    "discount": np.float32,
                }
            ),
            "episode_metadata": {"file_path": features.Text()},
        }
    )


def droid_example(episode: dict[str, Any], index: int, cameras: Sequence[str] = CAMERAS) -> bytes:
    """An episode as a serialized tf.train.Example."""
    steps, success = episode["steps"], episode["success"]
    last = len(steps) - 1
    outcome = "success" if success else "failure"
    path = f"/demo/{outcome}/episode_{index:05d}/trajectory.h5"
    example = example_class()()
    put = example.features.feature
    put["episode_metadata/file_path"].bytes_list.value.append(path.encode())

    def floats(name: str, values: Any) -> None:
        put[f"steps/{name}"].float_list.value.extend(np.asarray(values, np.float32).ravel())

    def flags(name: str, where: Any) -> None:
        put[f"steps/{name}"].int64_list.value.extend(int(where(n)) for n in range(len(steps)))

    for camera in cameras:
        frames = (step["observation"][camera] for step in steps)
        put[f"steps/observation/{camera}"].bytes_list.value.extend(
            encode_jpeg(frame, JPEG_QUALITY) for frame in frames
        )
    for state in STATES:
        floats(f"observation/{state}", [step["observation"][state] for step in steps])
    for part in PARTS:
        floats(f"action_dict/{part}", [step["action_dict"][part] for step in steps])
    floats("action", [step["action"] for step in steps])
    texts = [episode["language"].encode()] * len(steps)
    put["steps/language_instruction"].bytes_list.value.extend(texts)
    flags("is_first", lambda number: number == 0)
    flags("is_last", lambda number: number == last)
    flags("is_terminal", lambda number: number == last)
    floats("reward", [float(success and number == last) for number in range(len(steps))])
    floats("discount", np.ones(len(steps)))
    return example.SerializeToString(deterministic=True)


def write_dataset(
    data_path: str,
    name: str,
    version: str,
    episodes: Iterable[dict[str, Any]],
    count: int,
    files: int,
    cameras: Sequence[str] = CAMERAS,
) -> Path:
    """Writes `count` episodes into at least `files` files; returns `data_path/name/version`, which
    it replaces.

    Each episode is a dict with `steps` (DROID-shaped, images as uint8 arrays), `success` and
    `language`. Renames at the end: a folder under its final name is complete.
    """
    final = paths.expanded(data_path) / name / version
    folder = final.with_name(f"{version}.incomplete{os.getpid()}")
    folder.mkdir(parents=True)
    left, index, lengths, size = iter(episodes), 0, [], 0
    while shard := list(itertools.islice(left, max(1, count // files))):
        if not lengths:
            pixels = shard[0]["steps"][0]["observation"][cameras[0]].shape[:2]
            droid_features(*pixels, cameras).save_config(folder)
        with record_writer(folder / f"{name}-train.tfrecord-{len(lengths):05d}") as put:
            for episode in shard:
                record = droid_example(episode, index, cameras)
                put(record)
                index, size = index + 1, size + len(record)
        lengths.append(str(len(shard)))
    if index != count:
        raise ValueError(
            f"{index} episodes came, {count} were announced: the files would be uneven"
        )
    split = {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}",
        "name": "train",
        "numBytes": str(size),
        "shardLengths": lengths,
    }
    info = {
        "description": "Episodes in DROID's schema, as robomimic-ddp writes them.",
        "fileFormat": "tfrecord",
        "moduleName": __name__,
        "name": name,
        "splits": [split],
        "version": version,
    }
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=2))
    shutil.rmtree(final, ignore_errors=True)
    folder.rename(final)
    return final
