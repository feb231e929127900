"""Resizing: weights and pixels against TensorFlow's own filters."""

from __future__ import annotations

import numpy as np
import pytest

from robomimic_ddp.bench.data_set import made_up_episodes
from robomimic_ddp.rlds.pictures import PictureSize, decode, resize_frames
from robomimic_ddp.rlds.resampling import FILTERS, axis_weights, plain_resize
from robomimic_ddp.rlds.tf_import import import_tensorflow

MOST_DIFFERENT = {"lanczos3": 1e-4, "bilinear": 0, "bilinear_antialias": 1e-3}
"""Share of the values that may be rounded the other way: docs/rlds.md states it. A triangle's
weights are simple fractions, so that exact halves are not rare.
"""
SMOOTH = [name for name in FILTERS if name != "bilinear"]
SIZES = [
    ((180, 320), (128, 128)), ((128, 128), (64, 96)), ((128, 128), (180, 320)),
    ((97, 131), (128, 61)), ((64, 64), (63, 65)), ((1, 1), (5, 7)), ((33, 1), (8, 4)),
    ((50, 70), (1, 1)), ((3, 200), (9, 11)), ((360, 640), (128, 128)), ((2, 300), (2, 13)),
]  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(
    ("stored", "target"),
    [(180, 128), (320, 128), (128, 320), (64, 63), (7, 1), (1, 7), (1000, 37), (128, 128)],
)
def test_weights_are_tensorflows(name, stored, target):
    """Resizing one row for each pixel, in which that one alone is 1."""
    tf = import_tensorflow()
    method = "lanczos3" if name == "lanczos3" else "bilinear"
    rows = tf.eye(stored)[:, :, None, None]
    columns = tf.image.resize(rows, (target, 1), method, antialias=True).numpy()[:, :, 0, 0]
    found = axis_weights(target, stored, name)
    assert found.shape == (target, stored) and found.dtype == np.float32
    assert np.abs(found - columns.T).max() < 1e-6
    assert np.allclose(found.sum(1), 1, atol=1e-5)


def pictures(height, width):
    """Random ones, and ones with the spectrum of photographs, those with hard edges beside."""
    random = np.random.default_rng(height * 1000 + width).integers(0, 256, (3, height, width, 3))
    (episode,) = made_up_episodes(1, 3, height, width)
    natural = [step["observation"]["exterior_image_1_left"] for step in episode["steps"]]
    edges = np.where(random > 127, 255, 0)
    return np.concatenate([random, np.stack(natural), edges]).astype(np.uint8)


@pytest.mark.parametrize("name", FILTERS)
def test_pixels_are_tensorflows(name):
    """Those that differ do so by 1, and lay in the middle between two."""
    tf = import_tensorflow()
    method = name.partition("_")[0]
    different = total = 0
    for stored, target in SIZES:
        frames = pictures(*stored)
        exact = tf.image.resize(frames, target, method, antialias=name in SMOOTH).numpy()
        wanted = np.clip(np.round(exact), 0, 255)
        assert np.array_equal(plain_resize(tf.constant(frames), target, name), wanted)
        found = resize_frames(frames, PictureSize(*target, name))
        assert found.dtype == np.uint8 and found.shape == (9, *target, 3)
        parted = found != wanted
        assert np.abs(found - wanted).max() <= 1, (stored, target)
        assert np.abs(exact[parted] % 1 - 0.5).max(initial=0) < 1e-3, (stored, target)
        different, total = different + int(parted.sum()), total + wanted.size
    assert total > 2_000_000 and different <= MOST_DIFFERENT[name] * total, (different, total)


@pytest.mark.parametrize("name", FILTERS)
def test_a_frame_is_resized_alike_everywhere(name):
    """A batch is cut otherwise after a resume, or where a window is replaced; and a policy in
    closed loop gets its pictures from `resize_frames`.
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


@pytest.mark.parametrize("name", FILTERS)
def test_frames_of_the_wanted_size_are_left_alone_as_tensorflow_would_leave_them(name):
    tf = import_tensorflow()
    for height, width in ((128, 128), (33, 47), (1, 5)):
        frames = pictures(height, width)
        assert np.array_equal(plain_resize(tf.constant(frames), (height, width), name), frames)
        assert np.array_equal(resize_frames(frames, PictureSize(height, width, name)), frames)
