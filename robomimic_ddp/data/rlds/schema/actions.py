"""Compute actions and states from step features, by the schema's parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.schema.fields import Part
from robomimic_ddp.data.rlds.schema.rotations import convert


def part_values(steps: Mapping[str, Any], part: Part) -> np.ndarray:
    """Return the numbers of `part` of step features {name: [T, ...]}, float32 [T, part.size].
    Rotations are computed in float64: in float32 the angles of a pitch near 90 degrees have no
    digit that is right.
    """
    values = steps[part.source]
    values = values.reshape(len(values), math.prod(values.shape[1:]))
    if part.rotation:
        values = values.astype(np.float64)
    with np.errstate(all="ignore"):
        columns = values[:, part.start : part.stop]
        return (convert(columns, *part.rotation) if part.rotation else columns).astype(np.float32)


def action_vectors(steps: Mapping[str, Any], parts: Mapping[str, Part]) -> np.ndarray:
    """Return the raw actions of step features {name: [T, ...]}, float32 [T, A], as in `parts`."""
    return np.concatenate([part_values(steps, part) for part in parts.values()], 1)


def split_by_key(vectors: np.ndarray, parts: Mapping[str, Part]) -> dict[str, np.ndarray]:
    """Split action vectors [..., A] into {action key: [..., size of that part]}, as views."""
    ends = np.cumsum([part.size for part in parts.values()])
    return {
        key: vectors[..., end - part.size : end] for (key, part), end in zip(parts.items(), ends)
    }
