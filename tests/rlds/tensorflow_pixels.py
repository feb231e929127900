"""Frames as TensorFlow resizes them, in the way of octo and dlimp."""

from __future__ import annotations

from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.pipeline.images import PictureSize


def resized(frames: Any, size: PictureSize) -> np.ndarray:
    """uint8 [N, h, w, 3] -> [N, height, width, 3]."""
    from robomimic_ddp.data.rlds.tf_import import import_tensorflow

    resize = import_tensorflow().image.resize
    antialias = size.filter != "bilinear"
    exact = resize(frames, size.pixels, size.filter.partition("_")[0], antialias=antialias)
    return np.clip(np.round(exact.numpy()), 0, 255).astype(np.uint8)
