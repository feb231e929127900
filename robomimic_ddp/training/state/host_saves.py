"""How the host saves, copies and moves files: by the present run's `host_files`, if it has them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robomimic_ddp.checkpoint import HostFiles, torch_save
from robomimic_ddp.distributed import atomic_files, main_rank
from robomimic_ddp.training import run as _run

_FILE_OPERATIONS = ("shutil", "os", "posix")
"""Modules whose functions read, move and remove files."""


def save(obj: Any, path: Any) -> None:
    """`torch.save(obj, path)`, atomically: see `torch_save.save`."""
    files = _host_files()
    (torch_save.save if files is None else files.save)(obj, path)
    _keep_for_evaluation(obj, Path(os.path.abspath(path)))


def _keep_for_evaluation(obj: Any, saved: Path) -> None:
    """Save what the host's last.pth has in models/, too, where `ddp.rollouts=evaluate` needs a
    checkpoint of this epoch and the host has saved none there.
    """
    run = _run.current()
    epoch = None if run is None else run.progress.to_evaluate
    if epoch is None or run.output.directory is None:
        return
    run.progress.to_evaluate = None
    if saved.parent == run.output.directory:
        models = saved.parent / "models"
        models.mkdir(exist_ok=True)
        save(obj, models / f"model_epoch_{epoch}.pth")


def copyfile(src: str | os.PathLike, dst: str | os.PathLike) -> str | os.PathLike:
    """`shutil.copyfile`, on the main rank only, and atomic: see `atomic_files.copyfile`."""
    files = _host_files()
    return (atomic_files.copyfile if files is None else files.copyfile)(src, dst)


def main_rank_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate as `main_rank.main_rank_only` does; an operation on files waits for saves."""
    if getattr(function, "__module__", None) not in _FILE_OPERATIONS:
        return main_rank.main_rank_only(function)

    @functools.wraps(function)
    def after_saves(*args: Any, **kwargs: Any) -> Any:
        files = _host_files()
        if files is not None:
            files.writer.flush()
        return function(*args, **kwargs)

    return main_rank.main_rank_only(after_saves)


def _host_files() -> HostFiles | None:
    run = _run.current()
    return None if run is None else run.output.host_files
