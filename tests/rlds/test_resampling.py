"""Resizing: pixels against TensorFlow's own filters."""

from __future__ import annotations

import numpy as np
import pytest

from robomimic_ddp.config.rlds_keys import IMAGE_FILTERS
from robomimic_ddp.data.rlds.pipeline.images import PictureSize, decode, resize_frames
from robomimic_ddp.data.rlds.pipeline.resize import plain_resize
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from scripts.bench.data_set import made_up_episodes

SIZES = [
    ((180, 320), (128, 128)), ((128, 128), (64, 96)), ((128, 128), (180, 320)),
    ((97, 131), (128, 61)), ((64, 64), (63, 65)), ((1, 1), (5, 7)), ((33, 1), (8, 4)),
    ((50, 70), (1, 1)), ((3, 200), (9, 11)), ((360, 640), (128, 128)), ((2, 300), (2, 13)),
    ((180, 320), (180, 96)), ((180, 320), (64, 320)), ((480, 640), (224, 224)),
    ((128, 128), (128, 128)), ((33, 47), (33, 47)),
]  # fmt: skip


def pictures(height, width, each=3):
    """Random ones, ones with the spectrum of photographs, and ones with hard edges."""
    random = np.random.default_rng(height * 1000 + width)
    random = random.integers(0, 256, (each, height, width, 3))
    (episode,) = made_up_episodes(1, each, height, width)
    natural = [step["observation"]["exterior_image_1_left"] for step in episode["steps"]]
    edges = np.where(random > 127, 255, 0)
    return np.concatenate([random, np.stack(natural), edges]).astype(np.uint8)


@pytest.mark.parametrize("name", IMAGE_FILTERS)
def test_pixels_are_tensorflows(name):
    """To the last bit, and so is what `scripts.bench.data` compares with."""
    tf = import_tensorflow()
    method = name.partition("_")[0]
    for stored, target in SIZES:
        frames = pictures(*stored, 1)
        exact = tf.image.resize(frames, target, method, antialias=name != "bilinear").numpy()
        wanted = np.clip(np.round(exact), 0, 255)
        assert np.array_equal(plain_resize(tf.constant(frames), target, name), wanted)
        found = resize_frames(frames, PictureSize(*target, name))
        assert found.dtype == np.uint8 and found.shape == (3, *target, 3)
        assert np.array_equal(found, wanted), (stored, target)


@pytest.mark.parametrize("name", IMAGE_FILTERS)
def test_a_frame_is_resized_alike_everywhere(name):
    """A batch is cut otherwise after a resume, and a policy in closed loop gets its pictures from
    `resize_frames`.
    """
    tf = import_tensorflow()
    frames, size = pictures(180, 320), PictureSize(128, 128, name)
    encoded = [tf.io.encode_png(frame).numpy() for frame in frames]
    decoded = tf.Variable(0, dtype=tf.int64)

    def batches(count):
        pipeline = tf.data.Dataset.from_tensor_slices(encoded).batch(count)
        made = pipeline.map(lambda batch: decode(batch, (180, 320), size, decoded))
        return np.concatenate([batch.numpy() for batch in made])

    together = batches(len(frames))
    assert np.array_equal(together, batches(2))
    assert np.array_equal(together, resize_frames(frames, size))
