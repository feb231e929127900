"""Frames: pixels and bytes against TensorFlow's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from robomimic_ddp.data.rlds.pipeline.images import (
    decode,
    encode_jpeg,
    resize_frames,
)
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from scripts.bench.loading.data_set import made_up_episodes

ROOT = Path(__file__).resolve().parents[3]
SIZES = [
    ((180, 320), (128, 128)), ((128, 128), (180, 320)), ((97, 131), (128, 61)),
    ((64, 64), (63, 65)), ((1, 1), (5, 7)), ((33, 1), (8, 4)), ((50, 70), (1, 1)),
    ((2, 300), (2, 13)), ((180, 320), (64, 320)), ((480, 640), (224, 224)), ((33, 47), (33, 47)),
]  # fmt: skip


def pictures(height, width):
    """A random one, one with the spectrum of photographs, and one with hard edges."""
    random = np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, 3))
    (episode,) = made_up_episodes(1, 1, height, width)
    natural = episode["steps"][0]["observation"]["exterior_image_1_left"]
    return np.stack([random, natural, np.where(random > 127, 255, 0)]).astype(np.uint8)


def test_pixels_are_tensorflows():
    """To the last bit, as octo and dlimp resize, compiled and in numpy."""
    resize = import_tensorflow().image.resize
    for stored, target in SIZES:
        frames = pictures(*stored)
        exact = resize(frames, target, "lanczos3", antialias=True)
        wanted = np.clip(np.round(exact.numpy()), 0, 255).astype(np.uint8)
        resized = resize_frames(frames, target)
        assert resized.dtype == np.uint8 and resized.shape == (3, *target, 3)
        assert np.array_equal(resized, wanted), (stored, target)


COMPILES = """
from robomimic_ddp.data.rlds.pipeline import resize
import numba.core.config
before = numba.core.config.CACHE_DIR
compiled = resize.compiled_filter()
assert compiled is not None and numba.core.config.CACHE_DIR == before
print(sum(compiled.filter.stats.cache_hits.values()))
"""


def compile_at(home: Path, code: str = COMPILES, **variables: str) -> str:
    """What a process with this home folder prints."""
    kept = {name: text for name, text in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment = {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_compiled_code_is_kept_beside_the_indices(tmp_path):
    assert compile_at(tmp_path) == "0"
    kept = [path for path in tmp_path.rglob("*.nb?")]
    folder = tmp_path / ".cache" / "robomimic_ddp" / "rlds" / "compiled"
    assert kept and all(folder in path.parents for path in kept)
    assert compile_at(tmp_path) == "1", "the second process has nothing to compile"
    elsewhere = compile_at(tmp_path / "none", NUMBA_CACHE_DIR=str(folder))
    assert elsewhere == "1", "the user's own folder is taken"
    for path in kept:
        path.write_bytes(b"damaged")
    assert compile_at(tmp_path) == "0", "damaged code is compiled again"


@pytest.mark.slow
def test_a_folder_where_no_compiled_code_can_be_written_is_no_error(tmp_path):
    """The package is read-only, and so is the home folder."""
    code = (
        "import tempfile\n"
        "def no(*_, **__): raise OSError('read-only')\n"
        f"tempfile.TemporaryFile = no\n{COMPILES}"
    )
    assert compile_at(tmp_path, code) == "0"


@pytest.mark.slow
def test_a_user_without_a_home_folder_gets_no_folder_of_that_name(tmp_path):
    compile_at(Path("~"), f"import os; os.chdir({str(tmp_path)!r})\n{COMPILES}")
    assert list(tmp_path.iterdir()) == []


ENCODERS = {
    "jpeg": lambda tf, frame: tf.io.encode_jpeg(frame, quality=92),
    "grey jpeg": lambda tf, frame: tf.io.encode_jpeg(frame[..., :1]),
    "progressive jpeg": lambda tf, frame: tf.io.encode_jpeg(frame, progressive=True),
    "jpeg with all colours": lambda tf, frame: tf.io.encode_jpeg(frame, chroma_downsampling=False),
    "jpeg and more": lambda tf, frame: tf.io.encode_jpeg(frame) + b"more",
    "png": lambda tf, frame: tf.io.encode_png(frame),
    "grey png": lambda tf, frame: tf.io.encode_png(frame[..., :1]),
    "png with alpha": lambda tf, frame: tf.io.encode_png(
        np.concatenate([frame, frame[..., :1]], 2)
    ),
    "grey png of 16 bits": lambda tf, frame: tf.io.encode_png(
        frame[..., :1].astype(np.uint16) * 257 + 3
    ),
    "png of 16 bits": lambda tf, frame: tf.io.encode_png(frame.astype(np.uint16) * 257 + 3),
}


@pytest.mark.parametrize("kind", ENCODERS)
def test_frames_are_decoded_to_tensorflows_pixels(kind):
    tf = import_tensorflow()
    for frame in pictures(61, 83):
        data = ENCODERS[kind](tf, frame).numpy()
        wanted = tf.io.decode_image(data, channels=3, expand_animations=False).numpy()
        assert np.array_equal(decode(data, (61, 83)), wanted)


@pytest.mark.parametrize("quality", [50, 95])
def test_frames_are_encoded_to_tensorflows_bytes(quality):
    tf = import_tensorflow()
    for frame in pictures(61, 83):
        wanted = tf.io.encode_jpeg(frame, format="rgb", quality=quality).numpy()
        assert encode_jpeg(frame, quality) == wanted
