"""Compute octo's dataset statistics once, and not on every rank.

Its `get_dataset_statistics` reads the whole dataset, and writes a JSON file next to it, in place,
which another rank might read meanwhile.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.distributed import group, main_rank

NAME = "get_dataset_statistics"
ITS_OWN = "hash_dependencies"
"""A parameter that identifies octo's function, in octo and in copies of it."""


@contextmanager
def computed_once() -> Iterator[None]:
    """For the block, wrap each loaded copy of octo's function by `once`. Not collective."""
    import_tensorflow()  # before octo does, for the order of imports
    with suppress(ImportError):  # no octo, or a broken one: the host reports it
        importlib.import_module("octo.data.dataset")
    with ExitStack() as stack:
        for module in _holders():
            stack.enter_context(swapped(module, NAME, once(getattr(module, NAME))))
        yield


def _holders() -> list[ModuleType]:
    modules = []
    for module in list(sys.modules.values()):
        function = vars(module).get(NAME) if isinstance(module, ModuleType) else None
        if inspect.isfunction(function) and ITS_OWN in inspect.signature(function).parameters:
            modules.append(module)
    return modules


def once(function: Callable) -> Callable:
    """Wrap `function`: it is computed on the main rank. The wrapper is collective, without a time
    limit: every rank gets the main rank's value or error.
    """

    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        with group.without_time_limit() as waiting:
            return main_rank.on_main_untimed(waiting, function, *args, **kwargs)

    return computed
