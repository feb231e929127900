"""What is known of every episode without its pictures: place, length, statistics of actions and
states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from robomimic_ddp.rlds.tf_import import import_tensorflow


@dataclass(frozen=True)
class Moments:
    """Per episode and dimension: mean, sum of squared differences from it, min, max; float64 [E, D]
    each.
    """

    mean: np.ndarray
    sqdiff: np.ndarray
    min: np.ndarray
    max: np.ndarray

    def merged(self, lengths: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The statistics of all steps of the episodes `rows`: n, and mean, sqdiff, min, max as [1,
        D].

        Exact merging of the parts (Chan, Golub, LeVeque 1979), as the host merges its trajectories.
        """
        n = lengths[rows].astype(np.float64)[:, None]
        mean = (self.mean[rows] * n).sum(0) / n.sum()
        sqdiff = self.sqdiff[rows].sum(0) + (n * (self.mean[rows] - mean) ** 2).sum(0)
        return {
            "n": int(n.sum()),
            "mean": mean[None],
            "sqdiff": sqdiff[None],
            "min": self.min[rows].min(0)[None],
            "max": self.max[rows].max(0)[None],
        }


@dataclass(frozen=True)
class Index:
    """Every episode of a data set, in file order. All arrays have one row per episode.

    file: number in Source.files; offset: byte where its record starts; length: steps; labelled: has
    a language instruction; success: its file_path says so; actions [E, A], states [E, S]: Moments.
    """

    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    labelled: np.ndarray
    success: np.ndarray
    actions: Moments
    states: Moments


def moments(values: Any) -> tuple:
    """TensorFlow: [T, D] -> mean, sqdiff, min, max, float64 [D] each; zeros and infinities for T =
    0.
    """
    tf = import_tensorflow()
    values = tf.cast(values, tf.float64)
    n = tf.cast(tf.maximum(tf.shape(values)[0], 1), tf.float64)
    mean = tf.reduce_sum(values, 0) / n
    return (
        mean,
        tf.reduce_sum((values - mean) ** 2, 0),
        tf.reduce_min(values, 0),
        tf.reduce_max(values, 0),
    )
