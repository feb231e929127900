"""How a host reads a checkpoint: to the CPU, running no code of it, freed before training."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp.checkpoint import safe_load
from robomimic_ddp.config.monkeypatch import swapped

_READER = "load_dict_from_checkpoint"


@contextmanager
def read_on_cpu(
    host: str, untrusted: Any = None, before: Callable[[], Any] = lambda: None
) -> Iterator[list[dict]]:
    """For the block, load checkpoints of the package `host` to the CPU, whatever device they were
    saved from: every rank would fill the GPU that rank 0 trained on. Yields the list of loaded
    ones.

    untrusted: a path; that file is read by `safe_load.read_known`, which runs no code of it;
    before: called before a file is read.
    """
    checkpoints: list[dict] = []
    module = sys.modules.get(f"{host}.utils.file_utils")
    reader = getattr(module, _READER, None)
    if not callable(reader):
        yield checkpoints
        return

    @functools.wraps(reader)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before()
        load = functools.partial(_load_on_cpu, torch.load, untrusted)
        with swapped(torch, "load", load):
            checkpoint = reader(*args, **kwargs)
        checkpoints.append(checkpoint)
        return checkpoint

    with swapped(module, _READER, wrapped):
        yield checkpoints


def _load_on_cpu(
    load: Any, untrusted: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
) -> Any:
    location = "cpu" if map_location is None else map_location
    if untrusted is not None and isinstance(f, (str, os.PathLike)):
        path, checked = (Path(os.path.expanduser(os.fspath(name))) for name in (f, untrusted))
        if os.path.realpath(path) == os.path.realpath(checked):
            shown = f"experiment.ckpt_path={untrusted}"
            return safe_load.read_known(path, shown, location, mapped=False)
    return load(f, location, *args, **kwargs)


def release(checkpoints: list[dict]) -> None:
    """Free the weights in the dictionaries of `read_on_cpu`, which the host's train() keeps."""
    while checkpoints:
        checkpoint = checkpoints.pop()
        if isinstance(checkpoint, dict):
            checkpoint.pop("model", None)
