"""Arrays that all ranks compute together once, and that a cache folder keeps for later runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Callable, TypeVar

import numpy as np

from robomimic_ddp.config import paths
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.atomic_files import atomic_open
from robomimic_ddp.errors import DataError

Value = TypeVar("Value")
logger = logging.getLogger(__name__)
DEFAULT_CACHE = "~/.cache/robomimic_ddp/rlds"


def cache_folder(cache: str | None) -> Path:
    """The folder `cache`, or the default."""
    return paths.expanded(cache or DEFAULT_CACHE)


def read(path: Path, what: str, made_of: Callable[[dict[str, np.ndarray]], Value]) -> Value | None:
    """`made_of` the arrays in the file; None where there is none, or it cannot be used."""
    try:
        with np.load(paths.regular(path), allow_pickle=False) as arrays:
            return made_of(dict(arrays))
    except FileNotFoundError:
        return None
    # A damaged cache is no reason to stop. np.load raises many things for one.
    except Exception as error:
        logger.warning("the cached %s %s cannot be read (%s): made again", what, path, error)
        return None


def keep(path: Path, what: str, arrays: dict[str, Any]) -> None:
    """Replaces the file in one step, where that can be done; several jobs may do so at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, arrays)
    except OSError as error:
        logger.warning(
            "the %s %s cannot be kept (%s): every run will make it again, which may take as long "
            "as reading the dataset; set train.data_cache_dir to a writable folder",
            what,
            path,
            error,
        )


def write(path: Path, arrays: dict[str, Any]) -> None:
    """Replaces the file in one step. Raises OSError, also where there is no such folder."""
    with atomic_open(path, "wb") as file:
        np.savez(file, **arrays)


def made_together(make: Callable[[], Value]) -> list[Value]:
    """Collective: what `make()` returns on each rank. Ranks wait for the others without
    ddp.timeout. Raises the DataError of the first rank that has one on every rank.
    """
    own: Value | DataError
    with group.without_time_limit() as waiting:
        try:
            own = make()
        except DataError as error:
            own = error
        parts = group.gather_objects(own, within=waiting)
    for part in parts:
        if isinstance(part, DataError):
            raise part.on_all_ranks()
    return parts
