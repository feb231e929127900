"""Find the features of a dataset by name: slashes here, slashes or dots in schemas and errors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from robomimic_ddp.errors import DataError


def flat_features(steps: Any, prefix: str = "") -> dict[str, Any]:
    """Return the step features by name: {"observation/wrist_image_left": feature, ...}, without
    those of lists of features, of which a step may have any number.
    """
    flat: dict[str, Any] = {}
    for name, feature in steps.items():
        if not hasattr(feature, "items"):
            flat[prefix + name] = feature
        elif not hasattr(feature, "feature"):  # which a Sequence has, and a FeaturesDict has not
            flat.update(flat_features(feature, f"{prefix}{name}/"))
    return flat


def step_features(features: Any, where: str) -> dict[str, Any]:
    """Return the step features of an RLDS dataset. Raises DataError for another dataset."""
    if "steps" not in features or not hasattr(getattr(features["steps"], "feature", None), "items"):
        raise DataError(
            f"{where} is not an RLDS dataset: its features are {sorted(features)}, and RLDS keeps "
            "an episode's frames in a nested dataset `steps`. Point train.data_path / "
            "train.dataset_names at an RLDS one."
        )
    return flat_features(features["steps"].feature)


def episode_features(features: Any) -> dict[str, Any]:
    """Return the features of whole episodes, by name."""
    return flat_features({name: features[name] for name in features if name != "steps"})


def place_of(name: str, features: Mapping[str, Any]) -> str | None:
    """Return the feature that is called `name`, with dots or slashes, or None."""
    if name in features:
        return name
    dotted = {place.replace("/", "."): place for place in features}
    return dotted.get(name.replace("/", "."))


def is_number(feature: Any) -> bool:
    """Return whether a feature is stored as numbers: neither text nor encoded."""
    kind = getattr(feature, "np_dtype", None)
    return kind is not None and np.dtype(kind).kind in "biuf" and not is_encoded(feature)


def is_encoded(feature: Any) -> bool:
    """Return whether a value is stored as bytes: an image, or a Tensor with an `encoding`."""
    return type(feature).__name__ == "Image" or getattr(feature, "_encoded_to_bytes", False)


def is_picture(feature: Any) -> bool:
    """Return whether a feature is an encoded RGB image."""
    return type(feature).__name__ == "Image" and tuple(feature.shape)[-1] == 3


def nearest(name: str, features: Mapping[str, Any]) -> str:
    """Return a sentence with the feature of the most similar name, or ""."""
    wanted = name.replace("/", ".")
    dotted = [place.replace("/", ".") for place in features]
    close = difflib.get_close_matches(wanted, dotted, cutoff=0.4)
    if not close:  # the same last word elsewhere
        close = [place for place in dotted if place.rpartition(".")[2] == wanted.rpartition(".")[2]]
    return f" The nearest is `{close[0]}`." if close else ""


def listed(steps: Mapping[str, Any]) -> str:
    """Return the names, for a message."""
    return ", ".join(f"`{name}`" for name in sorted(steps))
