"""Import TensorFlow, for hosts with another RLDS pipeline: for the CPU only, without log
messages, with few threads. Our loader needs none.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from robomimic_ddp.config import env
from robomimic_ddp.errors import DataError

_STDERR = 2
_STARTUP_LINE = re.compile(
    rb"[IW]\d{4} |WARNING: All log messages before absl|To enable the follow"
)


@lru_cache(maxsize=1)
def import_tensorflow() -> Any:
    """Return the `tensorflow` module, without GPUs, whose memory the policy needs. Raises DataError
    if it is missing, or has already initialised a GPU in this process.
    """
    keep_triton_first()
    try:
        import tensorflow as tf
    except ImportError as error:
        raise DataError(
            f"the host's own RLDS pipeline needs TensorFlow, which cannot be imported: {error}. "
            "Install the host's requirements."
        ) from error
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        raise DataError(
            "TensorFlow has already taken a GPU in this process, whose memory the policy needs. "
            "Import robomimic_ddp before code that runs TensorFlow, or hide GPUs from that code."
        ) from error
    with suppress(RuntimeError):  # TensorFlow has already started: its pools cannot change
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
    # Graph-building chatter is not for users; errors come as exceptions.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    return tf


@contextmanager
def without_startup_lines() -> Iterator[None]:
    """Leave out what TensorFlow's libraries write to stderr while they are loaded, which no log
    level prevents. Other text appears after the block.
    """
    sys.stderr.flush()
    stderr = os.dup(_STDERR)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, _STDERR)
            os.close(stderr)
            file.seek(0)
            for line in file:
                if not _STARTUP_LINE.match(line):
                    os.write(_STDERR, line)


def keep_triton_first() -> None:
    """Have every later import of TensorFlow import triton first: with tensorflow-cpu 2.21 and torch
    2.12 the other order, also by way of torchvision, is a segmentation fault.
    """
    sys.meta_path.insert(0, _TritonFirst())


class _TritonFirst(MetaPathFinder):
    """Find TensorFlow where Python would."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _AfterTriton(fullname, spec.loader.path)
        return spec


class _AfterTriton(SourceFileLoader):
    """The loader imports triton, not the finder, which `find_spec` calls too."""

    def exec_module(self, module: ModuleType) -> None:
        with suppress(ImportError):  # torch without triton
            import triton  # noqa: F401
        with without_startup_lines() if env.tensorflow_is_quiet() else nullcontext():
            super().exec_module(module)
