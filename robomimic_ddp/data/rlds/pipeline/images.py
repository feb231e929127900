"""Decode and resize camera frames, to the pixels of TensorFlow."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from robomimic_ddp.data.rlds.pipeline.resize import resize_frame
from robomimic_ddp.errors import DataError

_JPEG = b"\xff\xd8\xff"
_FORMATS = ("PNG", "GIF", "BMP")
_kept = threading.local()
_CUT_OFF, _TOO_SMALL = "Premature end", "buffer is too small"
_INSTALL = 'Install the extra: pip install ".[rlds]" in robomimic-ddp\'s checkout.'


class RecordError(ValueError):
    """A record, or a frame in it, that cannot be read. The pipeline adds window: the dataset's
    number of a window of that episode; and frame: a camera and the number of its frame in the
    window, if that cannot be decoded.
    """

    window = -1
    frame: tuple[str, int] | None = None


def require_libraries() -> Any:
    """Return tensorflow-datasets, which reads metadata. Raises DataError if it is missing, or what
    reads records and frames.
    """
    try:
        import google_crc32c  # noqa: F401
        import PIL  # noqa: F401
        import simplejpeg  # noqa: F401
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(f"RLDS data cannot be read: {error}. {_INSTALL}") from error
    return tfds


def resize_frames(frames: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Return uint8 [N, h, w, 3] as [N, *size, 3], resized as in training, for rollouts. size:
    height and width.
    """
    resized = np.zeros((len(frames), *size, 3), np.uint8)
    for number, frame in enumerate(frames):
        resize_frame(np.ascontiguousarray(frame), tuple(size), resized[number])
    return resized


def decode(
    data: bytes, stored: tuple[int | None, ...] = (None, None), buffer: Any = None
) -> np.ndarray:
    """Decode JPEG, PNG, GIF or BMP bytes to uint8 [h, w, 3]. stored: (height, width) of the
    feature, None for any; buffer: memory for the pixels of a JPEG. Raises RecordError for another
    size, and for what cannot be decoded.
    """
    is_jpeg = data[:3] == _JPEG
    frame = _decoded_jpeg(data, buffer) if is_jpeg else _decoded(data)
    _require_size(frame.shape[:2], stored)
    return frame


def _require_size(size: tuple[int, int], stored: tuple[int | None, ...]) -> None:
    height, width = size
    if stored[0] not in (None, height) or stored[1] not in (None, width):
        raise RecordError(
            f"the image has {height}x{width} pixels, not the {stored[0]}x{stored[1]} of the "
            "metadata"
        )


def decode_resized(
    data: bytes, stored: tuple[int | None, ...], target: tuple[int, int], out: np.ndarray
) -> None:
    """Decode as `decode` and resize into `out`, uint8 [*target, 3]."""
    buffer = None
    if stored == target:
        buffer = out.reshape(-1)
    elif None not in stored:  # new memory costs a third of a decoder's time
        buffer = getattr(_kept, "pixels", None)
        count = stored[0] * stored[1] * 3
        if buffer is None or len(buffer) < count:
            buffer = _kept.pixels = bytearray(count)
    frame = decode(data, stored, buffer)
    if stored != target or data[:3] != _JPEG:
        resize_frame(frame, target, out)


def encode_jpeg(frame: np.ndarray, quality: int) -> bytes:
    """Encode uint8 [h, w, 3] as JPEG, to the bytes that TensorFlow makes of it."""
    from PIL import Image

    file = io.BytesIO()
    options = {"quality": quality, "subsampling": "4:2:0", "dpi": (300, 300)}
    Image.fromarray(frame).save(file, "JPEG", **options)
    return file.getvalue()


def _decoded_jpeg(data: bytes, buffer: Any) -> np.ndarray:
    import simplejpeg

    # The faster transformation is TensorFlow's choice.
    try:
        return simplejpeg.decode_jpeg(data, fastdct=True, buffer=buffer)
    except ValueError as error:
        message = str(error)
    if _TOO_SMALL in message:  # for a larger frame than the metadata's
        buffer = None
    try:  # as TensorFlow, which takes a file with a few bytes too many, but no file that is cut off
        if _CUT_OFF not in message:
            return simplejpeg.decode_jpeg(data, strict=False, fastdct=True, buffer=buffer)
    except ValueError as error:
        message = str(error)
    raise RecordError(f"it is not a complete JPEG: {message}")


def _decoded(data: bytes) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.mode.startswith("I"):  # grey of 16 bits
                return np.stack([(np.asarray(image) >> 8).astype(np.uint8)] * 3, -1)
            return np.array(image.convert("RGB"))
    # Pillow raises many things for damaged data.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RecordError(f"it is not an image that can be decoded: {reason}") from error
