"""A tf.data.Dataset of ours that calls tensorflow and tfds as dlimp's does.

Whatever a method makes is a `Trajectories` again, by a change of its class. Elements are episodes,
dicts of tensors [T, ...], until `flatten`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds


def _adopting(method: Callable) -> Callable:
    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        made = method(*args, **kwargs)
        if isinstance(made, tf.data.Dataset) and not isinstance(made, Trajectories):
            made.__class__ = type("Trajectories", (Trajectories, type(made)), {})
        return made

    return wrapped


class Trajectories(tf.data.Dataset):
    """Episodes, or frames after `flatten`."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return _adopting(value) if inspect.ismethod(value) else value

    @staticmethod
    def from_rlds(builder: Any, split: str, shuffle: bool, reads: int) -> Trajectories:
        """The episodes of `split`, pictures still encoded, the episode's own features repeated."""
        config = tfds.ReadConfig(
            skip_prefetch=True,
            num_parallel_calls_for_interleave_files=reads,
            interleave_cycle_length=reads,
        )
        read = _adopting(builder.as_dataset)
        episodes = read(
            split=split,
            shuffle_files=shuffle,
            decoders={"steps": tfds.decode.SkipDecoding()},
            read_config=config,
        )
        return episodes._with_our_options().enumerate().map(_with_metadata)

    def _with_our_options(self) -> Trajectories:
        options = tf.data.Options()
        options.deterministic = False
        options.autotune.enabled = True
        options.experimental_optimization.map_and_filter_fusion = True
        options.experimental_warm_start = True
        return self.with_options(options)

    def flatten(self, threads: int) -> Trajectories:
        """Frames, of `threads` episodes at a time."""
        return self.interleave(
            tf.data.Dataset.from_tensor_slices, cycle_length=threads, num_parallel_calls=threads
        )

    @staticmethod
    def mixed(datasets: list, weights: list[float]) -> Trajectories:
        """Frames of all, drawn by `weights`."""
        return _adopting(tf.data.Dataset.sample_from_datasets)(datasets, weights=weights)

    def iterator(self) -> Any:
        """Its elements as numpy, read ahead."""
        return self.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def _with_metadata(number: tf.Tensor, episode: dict[str, Any]) -> dict[str, Any]:
    steps = episode.pop("steps")
    length = tf.shape(tf.nest.flatten(steps)[0])[0]
    repeated = tf.nest.map_structure(lambda value: tf.repeat(value, length), episode)
    return {
        **steps,
        "traj_metadata": repeated,
        "_traj_index": tf.repeat(number, length),
        "_frame_index": tf.range(length),
    }
