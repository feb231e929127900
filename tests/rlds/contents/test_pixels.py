"""Frames: decoded, resized and encoded; TensorFlow's own pixels are in `test_resampling`."""

from __future__ import annotations

import io
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from robomimic_ddp.data.rlds.pipeline import images, resize
from robomimic_ddp.data.rlds.pipeline.images import (
    RecordError,
    decode,
    decode_resized,
    encode_jpeg,
    require_libraries,
    resize_frames,
)
from robomimic_ddp.errors import DataError

SIZE = (83, 61)


def picture(height: int = SIZE[0], width: int = SIZE[1]):
    """Noise in one half, edges of black and white in the other."""
    numbers = np.arange(height * width * 3)
    noise = (numbers**2 * 7919 >> 5) % 256
    edges = np.where(numbers % 2000 < 1000, noise, noise // 128 * 255)
    return edges.astype(np.uint8).reshape(height, width, 3)


def stored_as(kind, mode="RGB", **options):
    """The bytes of `picture` in a format of Pillow."""
    image, file = Image.fromarray(picture()).convert(mode), io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


JPEG = stored_as("JPEG", quality=92)
TOO_LONG = JPEG[:-2] + b"U" * 200 + JPEG[-2:]
CODES = JPEG.index(b"\xff\xc4") + 5
BOGUS = JPEG[:CODES] + bytes([12]) + bytes(15) + JPEG[CODES + 16 :]


RESIZED = {
    ((180, 320), (128, 128)): 3315754,
    ((32, 48), (90, 160)): 260876765,
    ((97, 131), (128, 61)): 2549512625,
    ((64, 64), (63, 65)): 2090157635,
    ((33, 1), (8, 4)): 3938276918,
    ((1, 1), (5, 7)): 2347509110,
    ((50, 70), (1, 1)): 2811343385,
    ((2, 300), (2, 13)): 1640642044,
    ((33, 47), (33, 47)): 104800290,
}


@pytest.mark.parametrize(("sizes", "checksum"), RESIZED.items(), ids=str)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])
def test_resized_pixels_never_change(sizes, checksum, compiled, monkeypatch):
    """TensorFlow's of the same picture have these checksums."""
    if not compiled:
        monkeypatch.setattr(resize, "compiled_filter", lambda: None)
    elif min(*sizes[0], *sizes[1]) >= 16:  # smaller images are always filtered in numpy
        pytest.importorskip("numba")
        monkeypatch.setattr(resize, "filter_in_numpy", None)
    resized = resize_frames(np.stack([picture(*sizes[0])] * 2), sizes[1])
    assert resized.dtype == np.uint8 and resized.shape == (2, *sizes[1], 3)
    assert [zlib.crc32(frame.tobytes()) for frame in resized] == [checksum] * 2


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
def test_other_formats_are_decoded_to_their_colours(kind, mode):
    data = stored_as(kind, mode)
    wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    frame = decode(data, SIZE)
    assert np.array_equal(frame, wanted) and frame.dtype == np.uint8
    frame[0] = 0  # not Pillow's memory, which is read-only


def test_of_16_bits_of_grey_the_upper_8_are_taken():
    grey, file = picture()[..., 0], io.BytesIO()
    Image.fromarray(grey.astype(np.uint16) * 256 + 255 - grey).save(file, "PNG")
    frame = decode(file.getvalue())
    assert np.array_equal(frame, np.stack([grey] * 3, -1)) and frame.dtype == np.uint8


def test_a_jpeg_is_decoded_by_the_faster_transformation():
    """As TensorFlow does it, and Pillow does not; both pass over bytes before the end."""
    frame = decode(JPEG, SIZE).astype(int)
    assert 0 < abs(frame - np.asarray(Image.open(io.BytesIO(JPEG)))).max() <= 8
    for data in (TOO_LONG, JPEG + b"more"):
        assert np.array_equal(decode(data, SIZE, bytearray(frame.size)), frame)


@pytest.mark.parametrize("data", [JPEG, TOO_LONG, stored_as("PNG")], ids=["jpeg", "long", "png"])
@pytest.mark.parametrize("stored", [SIZE, (None, None), (SIZE[0], None), (None, SIZE[1])], ids=str)
@pytest.mark.parametrize("target", [SIZE, (20, 31)], ids=str)
def test_a_frame_is_decoded_into_memory_at_its_new_size(data, stored, target):
    out = np.zeros((*target, 3), np.uint8)
    decode_resized(data, stored, target, out)
    assert np.array_equal(out, resize_frames(decode(data)[None], target)[0])


@pytest.mark.parametrize("data", [JPEG, TOO_LONG], ids=["jpeg", "long"])
def test_a_decoder_uses_its_memory_again(data, monkeypatch):
    """New memory would take a third of its time."""
    resized = []
    monkeypatch.setattr(images, "resize_frame", lambda *_: resized.append(1))
    out = np.zeros((*SIZE, 3), np.uint8)
    decode_resized(data, SIZE, (20, 31), out)
    tracemalloc.start()
    try:
        decode_resized(data, SIZE, (20, 31), out)
        decode_resized(data, SIZE, SIZE, out)  # into `out`
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < out.size and len(resized) == 2


def test_compiled_code_has_a_folder_in_the_home_folder(monkeypatch, tmp_path):
    compiled = pytest.importorskip("robomimic_ddp.data.rlds.pipeline.compiled")
    monkeypatch.setattr(compiled, "CompiledFilter", lambda folder: folder)
    cache = tmp_path / ".cache/robomimic_ddp/rlds/compiled"
    for home, folder in ((tmp_path, str(cache)), ("~", "")):
        monkeypatch.setenv("HOME", str(home))
        assert resize.compiled_filter.__wrapped__() == folder
    monkeypatch.setitem(sys.modules, compiled.__name__, None)  # as without numba
    assert resize.compiled_filter.__wrapped__() is None


def test_frames_are_encoded_as_tensorflow_does():
    """With its sampling of colours, and 300 dots per inch."""
    image = Image.open(io.BytesIO(encode_jpeg(picture(), 50)))
    assert image.format == "JPEG" and image.info["dpi"] == (300, 300)
    assert JpegImagePlugin.get_sampling(image) == 2
    assert image.quantization == Image.open(io.BytesIO(stored_as("JPEG", quality=50))).quantization


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("data", "stored", "words"),
    [
        (JPEG, (83, 62), "83x61 pixels, not the 83x62 of the metadata"),
        (JPEG, (None, 62), "83x61 pixels"),
        (JPEG, (82, None), "83x61 pixels"),
        (JPEG[: len(JPEG) // 2], SIZE, "not a complete JPEG: Premature end"),
        (JPEG[:-2], SIZE, "not a complete JPEG: Premature end"),
        (JPEG[:4] + b"\0\0" + JPEG[4:], SIZE, "not a complete JPEG: "),
        (BOGUS, (None, None), "not a complete JPEG: Bogus Huffman table"),
        (JPEG[3:], SIZE, "not an image that can be decoded: cannot identify image file"),
        (b"", SIZE, "not an image that can be decoded"),
        (stored_as("TIFF"), SIZE, "not an image that can be decoded: cannot identify image file"),
    ],
)
def test_what_is_no_frame_of_the_size_is_refused(data, stored, words):
    buffer = bytearray(8 * 10 * 3) if None in stored else None  # for a smaller frame
    with pytest.raises(RecordError, match=words) as refused:
        decode(data, stored, buffer)
    assert refused.value.window == -1 and refused.value.frame is None


@pytest.mark.bad_input
@pytest.mark.parametrize(("error", "words"), [(OSError(), "OSError"), (OSError("a\nb"), "a")])
def test_a_decoders_error_is_one_line(error, words, monkeypatch):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(Image, "open", fails)
    with pytest.raises(RecordError, match=f"can be decoded: {words}$"):
        decode(b"")


@pytest.mark.bad_input
def test_a_missing_library_is_one_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", sys)
    assert require_libraries() is sys
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(DataError, match="cannot be read: .*simplejpeg.* Install the extra: pip"):
        require_libraries()
