"""A small pipeline of ours with the calls of octo's into tfds, tf.data and the disk: what DROID's
train script imports, in little.

Statistics come from split "all", unshuffled, and are kept as JSON beside the dataset; training
data from "train[:95%]", its files shuffled, repeated, cut into frames, mixed, shuffled, decoded. At
the end, what such hosts put between the pipeline and robomimic.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from torch.utils.data import IterableDataset

from tests.rlds.trajectories import Trajectories

BUFFERS: list[int] = []
"""Every shuffle_buffer_size that was asked for."""
COMPUTED: list[str] = []
"""The file of every statistics that this process has computed."""
PICTURE = "exterior_image_1_left"
THREADS = 2


def _standard(episode: dict[str, Any]) -> dict[str, Any]:
    action = episode["action_dict"]
    return {
        "observation": episode["observation"],
        "action": tf.concat([action["cartesian_position"], action["gripper_position"]], -1),
        "language_instruction": episode["language_instruction"],
        "file_path": episode["traj_metadata"]["episode_metadata"]["file_path"],
        "step": episode["_frame_index"],
    }


def get_dataset_statistics(
    dataset: Trajectories, hash_dependencies: tuple[str, ...], save_dir: str
) -> dict[str, Any]:
    """Bounds of the actions, and the number of steps: from the file, else computed and kept."""
    name = hashlib.sha256("".join(hash_dependencies).encode()).hexdigest()[:16]
    path = Path(save_dir) / f"dataset_statistics_{name}.json"
    if path.exists():
        return json.loads(path.read_text())
    actions = [one["action"] for one in dataset.iterator()]
    COMPUTED.append(str(path))
    joined = np.concatenate(actions)
    found = {
        "action": {"min": joined.min(0).tolist(), "max": joined.max(0).tolist()},
        "num_transitions": len(joined),
    }
    path.write_text(json.dumps(found))
    return found


def make_dataset_from_rlds(
    name: str,
    data_dir: str,
    *,
    train: bool,
    shuffle: bool = True,
    dataset_statistics: dict[str, Any] | None = None,
    statistics_split: str = "all",
) -> tuple[Trajectories, dict[str, Any]]:
    """(episodes with actions in [-1, 1], statistics), as octo's function of this name."""
    builder = tfds.builder(name, data_dir=data_dir)
    if dataset_statistics is None:
        whole = Trajectories.from_rlds(builder, statistics_split, False, THREADS).map(_standard)
        depends = (str(builder.info), statistics_split)
        dataset_statistics = get_dataset_statistics(whole, depends, str(builder.data_dir))
    split = "train[:95%]" if train else "train[95%:]"
    if "val" in builder.info.splits:
        split = "train" if train else "val"
    episodes = Trajectories.from_rlds(builder, split, shuffle, THREADS).map(_standard)
    low, high = (np.array(dataset_statistics["action"][bound]) for bound in ("min", "max"))

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
    dataset_statistics: dict[str, Any] | None = None,
    window: int = 2,
    chunk: int = 16,
    repeat: bool = True,
    **more: Any,
) -> Trajectories:
    """Frames of all datasets, mixed and shuffled; endless with `repeat`."""
    BUFFERS.append(shuffle_buffer_size)
    weights = list(map(float, sample_weights or [1] * len(dataset_kwargs_list)))
    own = [make_dataset_from_rlds(**one, train=train, **more)[1] for one in dataset_kwargs_list]
    sources = []
    for one, statistics in zip(dataset_kwargs_list, own):
        given = dataset_statistics or statistics
        episodes, _ = make_dataset_from_rlds(**one, train=train, dataset_statistics=given)
        episodes = episodes.repeat() if repeat else episodes
        sources.append(episodes.map(lambda one: _chunked(one, window, chunk)).flatten(THREADS))
    frames = Trajectories.mixed(sources, weights).shuffle(shuffle_buffer_size).map(_decoded)
    options = tf.data.Options()
    options.autotune.ram_budget = 2**30
    frames = frames.with_options(options)
    frames.dataset_statistics, frames.sample_weights = dataset_statistics or own, weights
    return frames


def _chunked(episode: dict[str, Any], window: int, chunk: int) -> dict[str, Any]:
    """Episodes of frames with their past and future: [T, window | window - 1 + chunk, ...]."""
    length = tf.shape(episode["action"])[0]
    steps = tf.range(length)[:, None]
    past = tf.clip_by_value(steps + tf.range(1 - window, 1), 0, length - 1)
    ahead = tf.clip_by_value(steps + tf.range(1 - window, chunk), 0, length - 1)
    seen = {key: tf.gather(value, past) for key, value in episode["observation"].items()}
    return {**episode, "observation": seen, "action": tf.gather(episode["action"], ahead)}


def _decoded(frame: dict[str, Any]) -> dict[str, Any]:
    pictures = tf.map_fn(
        lambda data: tf.io.decode_image(data, channels=3, expand_animations=False),
        frame["observation"][PICTURE],
        fn_output_signature=tf.TensorSpec([None, None, 3], tf.uint8),
    )
    return {**frame, "observation": {**frame["observation"], PICTURE: pictures}}


def to_robomimic(frame: dict[str, Any]) -> dict[str, Any]:
    """A frame as a sample: one low-dim key, and the actions from the present step on."""
    position = frame["observation"]["cartesian_position"][..., :3]
    return {
        "obs": {"position": tf.ensure_shape(tf.cast(position, tf.float32), [2, 3])},
        "actions": tf.ensure_shape(tf.cast(frame["action"][1:], tf.float32), [16, 7]),
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
        """robomimic asks every dataset."""

    def get_action_normalization_stats(self) -> None:
        """The pipeline has normalised them."""
