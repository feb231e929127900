"""Action statistics -> scale and offset, by the host's formula.

Source: `action_stats_to_normalization_stats` in robomimic's utils/dataset.py (0.4 and later, and
DROID). A test compares the two; this layer does not import the host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.schema.job_config import normalization_method

BOUND = 0.999999
"""Extremes are mapped to this, not to 1, so that rounding stays inside [-1, 1]."""
SMALLEST_RANGE, SMALLEST_DEVIATION = 1e-4, 1e-6
STATE_DEVIATION_MARGIN = 1e-3
"""Added to a state's deviation, as in the host's SequenceDataset.normalize_obs."""


def action_normalization(
    stats: Mapping[str, Mapping[str, np.ndarray]], action_config: Mapping[str, Any]
) -> OrderedDict:
    """Return {action key: {"scale", "offset"}}, float32 [1, D] each, for statistics {action key:
    min, max, mean, sqdiff [1, D], n}: normalised = (raw - offset) / scale.
    """
    result = OrderedDict()
    for key, values in stats.items():
        scale, offset = _scale_and_offset(values, normalization_method(action_config, key))
        result[key] = {"scale": scale, "offset": offset}
    return result


def state_normalization(
    merged: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[str, np.ndarray]]:
    """Return {key: {"scale", "offset"}}, [1, *shape], for statistics [1, S] of joined states."""
    deviation = np.sqrt(merged["sqdiff"] / merged["n"]) + STATE_DEVIATION_MARGIN
    stats, start = {}, 0
    for key, shape in shapes.items():
        stop = start + int(np.prod(shape))
        stats[key] = {
            "offset": merged["mean"][:, start:stop].reshape(1, *shape).astype(np.float32),
            "scale": deviation[:, start:stop].reshape(1, *shape).astype(np.float32),
        }
        start = stop
    return stats


def _scale_and_offset(
    values: Mapping[str, np.ndarray], method: str | None
) -> tuple[np.ndarray, np.ndarray]:
    if method is None:
        return np.ones_like(values["mean"], np.float32), np.zeros_like(values["mean"], np.float32)
    if method == "gaussian":
        deviation = np.sqrt(values["sqdiff"] / values["n"]).astype(np.float32)
        return (
            np.where(deviation < SMALLEST_DEVIATION, np.float32(1), deviation),
            values["mean"].astype(np.float32),
        )
    low, high = values["min"].astype(np.float32), values["max"].astype(np.float32)
    spread = high - low
    constant = spread < SMALLEST_RANGE  # a constant dimension becomes 0
    spread[constant] = 2 * BOUND
    scale = spread / (2 * BOUND)
    offset = low + scale * BOUND
    offset[constant] = low[constant]
    return scale, offset


def vectors(
    normalization: Mapping[str, Mapping[str, np.ndarray]], action_config: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scale, offset and largest magnitude of whole action vectors, float32 [A] each. Hosts
    assert -1 <= action <= 1, which under min_max only rounding exceeds: 1 there, else infinity.
    """
    scale = np.concatenate([entry["scale"][0] for entry in normalization.values()])
    offset = np.concatenate([entry["offset"][0] for entry in normalization.values()])
    limits = [
        np.full(
            entry["scale"].shape[1],
            1.0 if normalization_method(action_config, key) == "min_max" else np.inf,
            np.float32,
        )
        for key, entry in normalization.items()
    ]
    return scale, offset, np.concatenate(limits)
