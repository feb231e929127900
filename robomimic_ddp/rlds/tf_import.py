"""Imports TensorFlow the one way this project uses it: on the CPU, quietly, with few threads."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from robomimic_ddp.errors import DataError

_INSTALL = 'Install the extra: pip install ".[rlds]" in robomimic-ddp\'s checkout.'


@lru_cache(maxsize=1)
def import_tensorflow() -> Any:
    """The `tensorflow` module, which from here on sees no GPU: its allocator would take the
    policy's memory.

    Raises DataError where TensorFlow is not installed, or has already taken a GPU in this process.
    """
    import_triton_first()
    try:
        import tensorflow as tf
    except ImportError as error:
        raise DataError(
            f"RLDS data is read with TensorFlow, which cannot be imported: {error}. {_INSTALL}"
        ) from error
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        raise DataError(
            "TensorFlow has already taken a GPU in this process, whose memory the policy needs. "
            "Import robomimic_ddp before code that runs TensorFlow, or hide the GPUs from that "
            "code."
        ) from error
    try:
        # The pipelines have pools of their own, sized by the ranks of the node.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
    except RuntimeError:
        pass  # someone else's code has already started TensorFlow: its pools stay as they are
    # Graph-building chatter is not for users; errors come as exceptions.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    return tf


def import_triton_first() -> None:
    """Loaded after TensorFlow's LLVM, that of triton (which torchvision imports) ends the process.

    Seen with tensorflow-cpu 2.21 and torch 2.12: `import tensorflow, triton` is a segmentation
    fault, the other order works.
    """
    try:
        import triton  # noqa: F401
    except ImportError:
        pass  # torch without triton: nothing to get in the way


@lru_cache(maxsize=1)
def import_tensorflow_datasets() -> Any:
    """The `tensorflow_datasets` module, with TensorFlow imported as above before it. Raises
    DataError.
    """
    import_tensorflow()
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            f"RLDS data is read with tensorflow-datasets, which cannot be imported: {error}. "
            f"{_INSTALL}"
        ) from error
    return tfds
