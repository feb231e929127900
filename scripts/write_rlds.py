"""Writes RLDS datasets in DROID's schema with tensorflow-datasets, without Beam."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robomimic_ddp.config import paths
from robomimic_ddp.data.rlds.tf_import import import_tensorflow, import_tensorflow_datasets

CAMERAS = ("exterior_image_1_left", "exterior_image_2_left", "wrist_image_left")
JPEG_QUALITY = 92


def droid_features(height: int, width: int, cameras: Sequence[str] = CAMERAS) -> Any:
    """The features of one episode; images are JPEG, [height, width, 3] uint8 when decoded."""
    tfds = import_tensorflow_datasets()
    features = tfds.features

    def vector(size: int) -> Any:
        return features.Tensor(shape=(size,), dtype=np.float64)

    image = {
        camera: features.Image(shape=(height, width, 3), encoding_format="jpeg")
        for camera in cameras
    }
    state = {
        "cartesian_position": vector(6),
        "gripper_position": vector(1),
        "joint_position": vector(7),
    }
    return features.FeaturesDict(
        {
            "steps": features.Dataset(
                {
                    "observation": {**image, **state},
                    "action_dict": {"cartesian_position": vector(6), "gripper_position": vector(1)},
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


def droid_example(
    episode: dict[str, Any], index: int, encode: Any, cameras: Sequence[str] = CAMERAS
) -> dict[str, Any]:
    """An episode as one example; `encode` turns [T, H, W, 3] into JPEG bytes."""
    steps, success = episode["steps"], episode["success"]
    encoded = {
        camera: encode(np.stack([step["observation"][camera] for step in steps]))
        for camera in cameras
    }
    last = len(steps) - 1
    rows = []
    for number, step in enumerate(steps):
        observation = dict(step["observation"], **{key: encoded[key][number] for key in cameras})
        rows.append(
            {
                "observation": observation,
                "action_dict": step["action_dict"],
                "action": step["action"],
                "language_instruction": episode["language"],
                "is_first": number == 0,
                "is_last": number == last,
                "is_terminal": number == last,
                "reward": float(success and number == last),
                "discount": 1.0,
            }
        )
    outcome = "success" if success else "failure"
    path = f"/demo/{outcome}/episode_{index:05d}/trajectory.h5"
    return {"steps": rows, "episode_metadata": {"file_path": path}}


def jpeg_encoder() -> Any:
    """A function uint8 [T, H, W, 3] -> T open files of JPEG bytes, encoded on several threads."""
    import io

    tf = import_tensorflow()

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8)])
    def encode_all(frames):
        def encode_one(frame):
            return tf.io.encode_jpeg(frame, quality=JPEG_QUALITY)

        return tf.map_fn(encode_one, frames, fn_output_signature=tf.string)

    return lambda frames: [io.BytesIO(jpeg) for jpeg in encode_all(frames).numpy()]


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
    tfds = import_tensorflow_datasets()
    final = paths.expanded(data_path) / name / version
    folder = final.with_name(f"{version}.incomplete{os.getpid()}")
    folder.mkdir(parents=True)
    identity = tfds.core.dataset_info.DatasetIdentity(
        name=name, version=tfds.core.Version(version), data_dir=str(folder), module_name=__name__
    )
    encode, writer, index = jpeg_encoder(), None, -1
    for index, episode in enumerate(episodes):
        if writer is None:
            size = episode["steps"][0]["observation"][cameras[0]].shape[:2]
            info = tfds.core.DatasetInfo(
                builder=identity,
                description="Episodes in DROID's schema, as robomimic-ddp writes them.",
                features=droid_features(*size, cameras),
            )
            writer = tfds.core.SequentialWriter(info, max_examples_per_shard=max(1, count // files))
            writer.initialize_splits(["train"])
        writer.add_examples({"train": [droid_example(episode, index, encode, cameras)]})
    if index + 1 != count:
        raise ValueError(
            f"{index + 1} episodes came, {count} were announced: the files would be uneven"
        )
    writer.close_all()
    shutil.rmtree(final, ignore_errors=True)
    folder.rename(final)
    return final
