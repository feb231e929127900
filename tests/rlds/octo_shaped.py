"""A small pipeline of ours with the calls of octo's: what DROID's train script imports, in little.

Statistics come from split "all", unshuffled, unless they are given; training data from
"train[:95%]", its files shuffled. Frames are windows over a padded episode. At the end, what such
hosts put between the pipeline and robomimic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from torch.utils.data import IterableDataset

BUFFERS: list[int] = []
"""Every shuffle_buffer_size that was asked for."""


def read(builder: Any, split: str, shuffle: bool) -> tf.data.Dataset:
    """Episodes as tensors [T, ...]: pictures, state, action, language, file."""
    config = tfds.ReadConfig(skip_prefetch=True, interleave_cycle_length=2)
    episodes = builder.as_dataset(split=split, shuffle_files=shuffle, read_config=config)
    return episodes.map(_whole)


def _whole(episode: dict[str, Any]) -> dict[str, Any]:
    steps = episode["steps"].batch(1000).get_single_element()
    action = steps["action_dict"]
    return {
        "observation": steps["observation"],
        "action": tf.concat([action["cartesian_position"], action["gripper_position"]], -1),
        "language_instruction": steps["language_instruction"],
        "file_path": episode["episode_metadata"]["file_path"],
    }


def statistics_of(episodes: tf.data.Dataset) -> dict[str, Any]:
    """Bounds of the actions, and the number of steps: read record by record, now."""
    actions = [episode["action"] for episode in episodes.as_numpy_iterator()]
    joined = np.concatenate(actions)
    return {
        "action": {"min": joined.min(0), "max": joined.max(0)},
        "num_transitions": len(joined),
    }


def make_dataset_from_rlds(
    name: str,
    data_dir: str,
    *,
    train: bool,
    shuffle: bool = True,
    dataset_statistics: dict[str, Any] | None = None,
    statistics_split: str = "all",
) -> tuple[tf.data.Dataset, dict[str, Any]]:
    """(episodes with actions in [-1, 1], statistics), as octo's function of this name."""
    builder = tfds.builder(name, data_dir=data_dir)
    if dataset_statistics is None:
        dataset_statistics = statistics_of(read(builder, statistics_split, False))
    episodes = read(builder, "train[:95%]" if train else "train[95%:]", shuffle)
    low, high = dataset_statistics["action"]["min"], dataset_statistics["action"]["max"]

    def normalise(episode: dict[str, Any]) -> dict[str, Any]:
        action = 2 * (episode["action"] - low) / (high - low + 1e-8) - 1
        return {**episode, "action": tf.clip_by_value(action, -1.0, 1.0)}

    return episodes.map(normalise), dataset_statistics


def make_interleaved_dataset(
    dataset_kwargs_list: Sequence[dict[str, Any]],
    sample_weights: Sequence[float] | None = None,
    *,
    train: bool,
    shuffle_buffer_size: int,
    window: int = 2,
    chunk: int = 16,
    repeat: bool = True,
    **more: Any,
) -> tf.data.Dataset:
    """Frames of all datasets, mixed and shuffled; endless with `repeat`."""
    BUFFERS.append(shuffle_buffer_size)
    sources = [
        make_dataset_from_rlds(**kwargs, train=train, **more)[0] for kwargs in dataset_kwargs_list
    ]
    frames = [
        (episodes.repeat() if repeat else episodes).flat_map(
            lambda episode: _frames(episode, window, chunk)
        )
        for episodes in sources
    ]
    mixed = tf.data.Dataset.sample_from_datasets(frames, sample_weights)
    return mixed.shuffle(shuffle_buffer_size)


def _frames(episode: dict[str, Any], window: int, chunk: int) -> tf.data.Dataset:
    length = tf.shape(episode["action"])[0]
    steps = tf.range(length)

    def frame(step: tf.Tensor) -> dict[str, Any]:
        past = tf.clip_by_value(step + tf.range(1 - window, 1), 0, length - 1)
        ahead = tf.clip_by_value(step + tf.range(1 - window, chunk), 0, length - 1)
        return {
            "observation": {k: tf.gather(v, past) for k, v in episode["observation"].items()},
            "action": tf.gather(episode["action"], ahead),
            "language_instruction": episode["language_instruction"][step],
            "file_path": episode["file_path"],
            "step": step,
        }

    return tf.data.Dataset.from_tensor_slices(steps).map(frame)


def to_robomimic(frame: dict[str, Any]) -> dict[str, Any]:
    """A frame as a sample: one low-dim key, and the actions from the present step on."""
    position = frame["observation"]["cartesian_position"][..., :3]
    return {
        "obs": {"position": tf.cast(position, tf.float32)},
        "actions": tf.cast(frame["action"][1:], tf.float32),
    }


def shapes_of(dataset: tf.data.Dataset, config: Any) -> dict[str, Any]:
    """What robomimic calls shape metadata."""
    spec, keys = dataset.element_spec, config.all_obs_keys
    return {
        "all_shapes": {key: [int(spec["obs"][key].shape[-1])] for key in keys},
        "all_obs_keys": keys,
        "ac_dim": int(spec["actions"].shape[-1]),
        "use_images": False,
        "use_depths": False,
    }


class TorchRLDSDataset(IterableDataset):
    """Samples of a tf.data pipeline, one by one."""

    def __init__(self, rlds_dataset: tf.data.Dataset) -> None:
        self._rlds_dataset = rlds_dataset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self._rlds_dataset.as_numpy_iterator()

    def __len__(self) -> int:
        """Faulty, as in DROID's code, where nothing asks for it."""
        raise NameError("name 'np' is not defined")

    def get_dataset_sampler(self) -> None:
        """robomimic asks every data set."""

    def get_action_normalization_stats(self) -> None:
        """The pipeline has normalised them."""
