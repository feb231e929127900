"""Arrays that all ranks compute together once, and that a cache folder keeps for later runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from robomimic_ddp import files
from robomimic_ddp.config import paths
from robomimic_ddp.config.host.rlds_keys import DEFAULT_CACHE
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.atomic_files import atomic_open
from robomimic_ddp.errors import DataError
from robomimic_ddp.terminal import clean

Value = TypeVar("Value")
logger = logging.getLogger(__name__)


def cache_folder(cache: str | None) -> Path:
    """Return the folder `cache`, or the default. Raises DataError where ~ cannot be expanded."""
    folder = paths.expanded(cache or DEFAULT_CACHE)
    if str(folder).startswith("~"):
        raise DataError(
            f"the cache folder {folder} cannot be found: the home folder is unknown (HOME is not "
            "set, or there is no such user). A folder named ~ would be made here. Set HOME, or "
            "train.data_cache_dir=FOLDER."
        )
    return folder


def read(path: Path, what: str, build: Callable[[dict[str, np.ndarray]], Value]) -> Value | None:
    """Return `build` of the arrays in the file; None where there is none, or it cannot be used."""
    try:
        with np.load(files.regular(path), allow_pickle=False) as arrays:
            return build(dict(arrays))
    except FileNotFoundError:
        return None
    # A damaged cache need not stop a run. np.load raises many things for one.
    except Exception as error:
        logger.warning(
            "the cached %s %s cannot be read (%s) and is rebuilt", what, path, clean(error)
        )
        return None


def store(path: Path, what: str, arrays: dict[str, Any]) -> bool:
    """Replace the file in one step, and return whether that could be done; several jobs may do so
    at once.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_open(path, "wb") as file:
            np.savez(file, **arrays)
        return True
    except OSError as error:
        logger.warning(
            "the %s %s cannot be stored (%s): every run will rebuild it, which may take as long "
            "as reading the dataset; set train.data_cache_dir to a writable folder",
            what,
            path,
            error,
        )
        return False


def compute_together(make: Callable[[], Value]) -> list[Value]:
    """Collective: return what `make()` returns on each rank. Ranks wait for the others without
    ddp.timeout. Raises the DataError of the first rank that has one on every rank.
    """
    result: Value | DataError
    with group.without_time_limit() as waiting:
        try:
            result = make()
        except DataError as error:
            result = error
        results = group.gather_objects(result, within=waiting)
    for result in results:
        if isinstance(result, DataError):
            raise result.on_all_ranks()
    return results
