"""Checkpoints: written atomically, and loadable whether or not the nets were wrapped when saved."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robomimic_ddp.checkpoint import file_check
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import atomic_files, watchdog
from robomimic_ddp.errors import CheckpointError

_READER = "load_dict_from_checkpoint"
_WRITER_TEXTS = ("PytorchStreamWriter", "inline_container", "unexpected pos", "iostream error")
"""Texts of torch's RuntimeError for a short write."""


@watchdog.saving("a checkpoint")
def save(obj: Any, path: Any, follow: bool = True) -> None:
    """`torch.save`, atomically, with the same bytes: torch writes the file's name into the archive,
    so the temporary file has it, in a temporary folder. Raises CheckpointError, and keeps the old
    file, for a full disk, or a missing or read-only folder. A symbolic link is followed, or, for a
    file of ours (not `follow`), replaced.
    """
    target = Path(os.path.realpath(path) if follow else os.path.abspath(path))
    atomic_files.remove_left_over(target)
    temporary = atomic_files.temporary_beside(target)
    try:
        temporary.mkdir()
        torch.save(obj, temporary / target.name)
        with open(temporary / target.name, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary / target.name, target)
        atomic_files.flush_folder(target.parent)
    except OSError as error:
        raise save_error(target, error) from error
    except RuntimeError as error:
        if not any(text in str(error) for text in _WRITER_TEXTS):
            raise  # of the tensors, such as a CUDA error while they were copied
        raise save_error(target, _refused_write(temporary) or error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _refused_write(folder: Path) -> OSError | None:
    """The system's error for another write in `folder`, since torch gives no reason."""
    try:
        with open(folder / "another", "wb") as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


@contextmanager
def read_on_cpu(
    host: str, untrusted: Any = None, before: Callable[[], Any] = lambda: None
) -> Iterator[list[dict]]:
    """For the block, load checkpoints of the package `host` to the CPU, whatever device they were
    saved from: every rank would fill the GPU that rank 0 trained on. Yields the list of loaded
    ones.

    untrusted: a path; that file is read by `file_check.read_known`, which runs no code of it;
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
            return file_check.read_known(path, shown, location, mapped=False)
    return load(f, location, *args, **kwargs)


def release(checkpoints: list[dict]) -> None:
    """Free the weights in the dictionaries of `read_on_cpu`, which the host's train() keeps."""
    while checkpoints:
        checkpoint = checkpoints.pop()
        if isinstance(checkpoint, dict):
            checkpoint.pop("model", None)


def save_error(path: Path, error: Exception) -> CheckpointError:
    """The error if the checkpoint `path` could not be written because of `error`."""
    return CheckpointError(f"checkpoint {atomic_files.not_saved(path, error)}")


def accept_any_layout(net: nn.Module) -> nn.Module:
    """Makes `load_state_dict` of `net`, or of a module that contains it, accept keys with or
    without the component `module.`, which DataParallel and DistributedDataParallel add. Returns
    `net`.
    """
    net._register_load_state_dict_pre_hook(_rename_to_layout, with_module=True)
    return net


def _rename_to_layout(module: nn.Module, state_dict: dict, prefix: str, *_: Any) -> None:
    """Renames, in place, the keys under `prefix` to the layout of `module`."""
    first = next((name for name, _ in module.named_parameters()), None)
    if (
        first is None or prefix + first in state_dict
    ):  # the common case: averaged copies load every step
        return
    expected = {prefix + name for name in module.state_dict(keep_vars=True)}
    present = [key for key in state_dict if key.startswith(prefix)]
    for key in present:
        rest = key[len(prefix) :]
        other = prefix + (
            rest[len("module.") :] if rest.startswith("module.") else "module." + rest
        )
        if other in expected:
            state_dict[other] = state_dict.pop(key)
