"""Pictures: decoding at a reduced scale, and the floats that they become."""

from __future__ import annotations

import numpy as np
import pytest

from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.pipeline.images import PictureSize, decode, reduction
from scripts.bench.data_set import made_up_episodes
from tests.rlds.conftest import CAMERAS

MEAN_ERROR, LARGEST_ERROR = 1.5, 12.0
"""Of 255: docs/rlds.md states them."""


@pytest.mark.parametrize(
    ("stored", "target", "scale"),
    [((180, 320), (128, 128), 1), ((360, 640), (128, 128), 2), ((720, 1280), (128, 128), 4),
     ((1080, 1920), (128, 128), 8), ((1023, 1023), (128, 128), 8), ((1015, 1024), (128, 128), 4),
     ((256, 256), (128, 128), 2), ((128, 128), (128, 128), 1), ((None, None), (8, 8), 1)],
)  # fmt: skip
def test_the_scale_leaves_at_least_what_is_delivered(stored, target, scale):
    assert reduction(stored, PictureSize(*target)) == scale


def decoded(encoded, stored, size, scale):
    import tensorflow as tf

    counter = tf.Variable(0, dtype=tf.int64)
    pictures = decode(tf.constant(encoded), stored, size, counter, scale).numpy()
    assert int(counter.numpy()) == len(encoded) == len(pictures)
    return pictures.astype(np.float32)


@pytest.mark.parametrize(("stored", "scale"), [((360, 640), 2), ((720, 1280), 4)])
def test_the_error_of_fast_decoding_is_bounded(stored, scale):
    """Against the full decode, which is then filtered over as many pixels as are averaged."""
    from robomimic_ddp.data.rlds.write import jpeg_encoder

    (episode,) = made_up_episodes(1, 3, *stored)
    frames = np.stack([s["observation"]["exterior_image_1_left"] for s in episode["steps"]])
    encoded = [file.getvalue() for file in jpeg_encoder()(frames)]
    exact = decoded(encoded, stored, PictureSize(128, 128), 1)
    fast = decoded(encoded, stored, PictureSize(128, 128, fast=True), scale)
    error = np.abs(fast - exact)
    assert 0 < error.mean() < MEAN_ERROR and error.max() < LARGEST_ERROR
    plain = PictureSize(128, 128, "bilinear")
    sharp = decoded(encoded, stored, plain, 1)
    assert np.abs(decoded(encoded, stored, plain, scale) - sharp).mean() < 12


def test_the_option_reaches_the_decoder(make_config):
    from robomimic_ddp.data.rlds import host_datasets

    config = make_config(observation={"image_dim": [10, 18]})
    for fast, scale in ((False, 1), (True, 2)):
        train, _ = host_datasets.datasets_from_config(config, config.all_obs_keys, fast_decode=fast)
        assert train.settings.reduced == dict.fromkeys(CAMERAS[:2], scale)
        batch = next(iter(make_loader(train, 2, 0, 1, 0)))
        assert batch["obs"][CAMERAS[0]].shape == (2, train.shape.frame_stack, 10, 18, 3)


def test_floats_made_on_the_device_are_those_of_hosts_that_make_them_in_tensorflow():
    """DROID's pipeline divides by 255 in tf.data; here uint8 goes to the device, then the host's
    own conversion.
    """
    obs_utils = pytest.importorskip("robomimic.utils.obs_utils")
    import tensorflow as tf
    import torch

    values = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 1, 16, 16, 3)
    in_tensorflow = (tf.cast(values, tf.float32) / 255.0).numpy()
    moved = torch.from_numpy(values).float()  # to_float(to_device(batch))
    on_device = obs_utils.process_frame(moved, channel_dim=3, scale=255.0).numpy()
    assert np.abs(on_device - np.moveaxis(in_tensorflow, -1, -3)).max() <= 1e-6
